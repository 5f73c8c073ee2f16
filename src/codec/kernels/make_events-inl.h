// EncodeKernels::make_events. Included by encode_kernels_simd.cc inside each target's namespace; no include guard on
// purpose.
//
// Nearly all changes wait less than a horizon, and most have a magnitude without extra bits: exactly two events each.
// The events of a vector of such changes are made together and written in one piece. Where some have extra bits, the
// others' events are made together all the same. A change that is rarer ends its vector and goes through
// SparseEventWriter, which defines the result; the next vector begins after it.

// kWordLanes units, one a lane.
template <typename Unit>
HWY_INLINE Words LoadWidened(const std::uint8_t* units) {
  const hn::Rebind<Unit, hn::ScalableTag<std::uint32_t>> narrow;
  const hn::Repartition<std::uint8_t, decltype(narrow)> bytes;
  const auto loaded = hn::BitCast(narrow, hn::LoadU(bytes, units));
  if constexpr (sizeof(Unit) == 4) {
    return loaded;
  } else {
    return hn::PromoteTo(kWords, loaded);
  }
}

// ToOrdered of every lane; `sign_magnitude` is all ones or nothing.
template <typename Unit>
HWY_INLINE Words OrderedOf(Words units, Words sign_magnitude) {
  constexpr int kTop = 8 * static_cast<int>(sizeof(Unit)) - 1;
  const auto negative = hn::Sub(hn::Zero(kWords), hn::ShiftRight<kTop>(units));
  return hn::Xor(units, hn::And(hn::And(negative, sign_magnitude), hn::Set(kWords, (1u << kTop) - 1)));
}

// Appends the changes from k on that are before the next rare one, at most kWordLanes; returns how many.
// REQUIRES: 0 < k < changes.changed.
template <typename Unit>
HWY_INLINE std::size_t AppendTogether(const SparseChanges& changes, const ExpandedTables& tables, std::size_t k,
                                      SparseEventWriter<Unit>& writer) {
  constexpr int kBits = 8 * static_cast<int>(sizeof(Unit));
  constexpr std::uint32_t kUnitMask = sizeof(Unit) == 4 ? 0xffffffff : (std::uint64_t{1} << kBits) - 1;
  const auto unit_mask = hn::Set(kWords, kUnitMask);
  const auto one = hn::Set(kWords, 1);
  const auto position = hn::LoadU(kWords, changes.positions + k);
  const auto gap = hn::Sub(hn::Sub(position, hn::LoadU(kWords, changes.positions + k - 1)), one);
  const auto old_units = LoadWidened<Unit>(changes.old_units + k * sizeof(Unit));
  const auto field = hn::And(hn::ShiftRightSame(old_units, tables.rule.shift),
                             hn::Set(kWords, std::uint32_t{tables.rule.FieldMask()}));
  const auto lowest = hn::Set(kWords, std::uint32_t{tables.rule.lowest});
  const auto unit_class =
      hn::Min(hn::Sub(hn::Max(field, lowest), lowest), hn::Set(kWords, std::uint32_t{kClassCount - 1}));
  const auto rate = LookUpRates(tables, unit_class);
  const auto wait_and_rate = hn::Sub(hn::LoadU(kWords, changes.ends + k), hn::LoadU(kWords, changes.ends + k - 1));
  const auto wait = hn::Sub(wait_and_rate, rate);

  const auto sign_magnitude =
      hn::Set(kWords, tables.rule.order == Order::kSignMagnitude ? ~std::uint32_t{0} : std::uint32_t{0});
  const auto from = OrderedOf<Unit>(old_units, sign_magnitude);
  const auto to = OrderedOf<Unit>(LoadWidened<Unit>(changes.new_units + k * sizeof(Unit)), sign_magnitude);
  const auto up = hn::And(hn::Sub(to, from), unit_mask);
  const auto down = hn::Ne(hn::ShiftRight<kBits - 1>(up), hn::Zero(kWords));
  const auto magnitude = hn::IfThenElse(down, hn::And(hn::Sub(hn::Zero(kWords), up), unit_mask), up);
  const auto n = hn::Sub(magnitude, one);

  const auto has_extra = hn::Gt(n, hn::Set(kWords, std::uint32_t{kPlainSymbols - 1}));
  auto packed = LookUpSixteen(tables.plain_symbols[0].data(), unit_class);
  for (std::uint32_t s = 1; s < kPlainSymbols; ++s) {
    packed = hn::IfThenElse(hn::Eq(n, hn::Set(kWords, s)), LookUpSixteen(tables.plain_symbols[s].data(), unit_class),
                            packed);
  }
  const auto rare =
      hn::Or(hn::Or(hn::Gt(wait, hn::Set(kWords, kHorizon - 1)), hn::Gt(gap, hn::Set(kWords, writer.safe_gap()))),
             hn::AndNot(has_extra, hn::Eq(packed, hn::Set(kWords, kNoSymbol))));
  // What is read after the last change means nothing.
  const std::uint64_t stop = MaskBits(kWords, rare) | (std::uint64_t{1} << std::min(kWordLanes, changes.changed - k));
  std::size_t count = kWordLanes;
  if (stop != std::uint64_t{1} << kWordLanes) [[unlikely]] {
    count = LowestBit(stop);
    // Stays a branch: the next vector need not wait for this one to know where it begins.
    asm volatile("" : "+r"(count));  // NOLINT(hicpp-no-assembler)
  }
  const std::uint64_t counted = (std::uint64_t{1} << count) - 1;

  const auto waiting_begin = WaitingOf(wait);
  const auto waiting_end = WaitingOf(hn::Min(wait_and_rate, hn::Set(kWords, kHorizon)));
  const auto fold = hn::Set(kWords, kFold);
  const auto change_start = hn::IfThenElse(down, hn::Add(fold, waiting_end), hn::Sub(fold, waiting_begin));
  const auto change_width = hn::Sub(waiting_begin, waiting_end);
  const auto symbol_start = hn::And(packed, hn::Set(kWords, 0xffff0000));
  const auto symbol_width = hn::ShiftLeft<16>(packed);
  const auto single_steps =
      static_cast<std::uint32_t>(std::popcount(MaskBits(kWords, hn::Eq(magnitude, one)) & counted));
  static_assert(sizeof(RansEvent) == 8 && offsetof(RansEvent, width) == 4);
  RansEvent* event = writer.next_event();
  hn::StoreInterleaved4(change_start, change_width, symbol_start, symbol_width, kWords, &event->start);
  std::uint64_t extra_lanes = MaskBits(kWords, has_extra) & counted;
  if (extra_lanes == 0) {
    writer.Skip(event + 2 * count, single_steps);
    return count;
  }
  // Few changes have extra bits. For each of these the events after it move up by one, as many as a vector of changes
  // can have: what is behind them means nothing.
  HWY_ALIGN std::uint32_t magnitudes[kWordLanes];
  HWY_ALIGN std::uint32_t classes[kWordLanes];
  hn::Store(magnitude, kWords, magnitudes);
  hn::Store(unit_class, kWords, classes);
  for (; extra_lanes != 0; extra_lanes &= extra_lanes - 1) {
    const std::size_t lane = LowestBit(extra_lanes);
    const Bucket bucket = BucketOf(magnitudes[lane]);
    std::uint32_t* const after = &event[2 * lane + 2].start;
    const auto events0 = hn::LoadU(kWords, after);
    const auto events1 = hn::LoadU(kWords, after + kWordLanes);
    const auto events2 = hn::LoadU(kWords, after + 2 * kWordLanes);
    const auto events3 = hn::LoadU(kWords, after + 3 * kWordLanes);
    event[2 * lane + 1] = SymbolOf(tables, classes[lane], bucket.symbol);
    AppendRawBits(bucket.extra, bucket.extra_bits, event + 2 * lane + 2);
    hn::StoreU(events0, kWords, after + 2);
    hn::StoreU(events1, kWords, after + 2 + kWordLanes);
    hn::StoreU(events2, kWords, after + 2 + 2 * kWordLanes);
    hn::StoreU(events3, kWords, after + 2 + 3 * kWordLanes);
    ++event;
  }
  writer.Skip(event + 2 * count, single_steps);
  return count;
}

EventCounts MakeEvents(const SparseChanges& changes, int unit_bytes, const ExpandedTables& tables, RansEvent* events) {
  return WithUnit(unit_bytes, [&]<typename Unit>() -> EventCounts {
    SparseEventWriter<Unit> writer(changes, tables, events);
    writer.Append(0);
    std::size_t k = 1;
    if constexpr (sizeof(Unit) <= 4) {
      while (k < changes.changed) {
        const std::size_t most = std::min(kWordLanes, changes.changed - k);
        const std::size_t appended = AppendTogether<Unit>(changes, tables, k, writer);
        k += appended;
        // Where the first is rare already, others will be, and a vector for each would cost more than it saves.
        const std::size_t plain = appended == 0 ? most : std::min<std::size_t>(1, most - appended);
        for (const std::size_t end = k + plain; k < end; ++k) writer.Append(k);
      }
    }
    for (; k < changes.changed; ++k) writer.Append(k);
    return {static_cast<std::size_t>(writer.Finish() - events), writer.single_steps()};
  });
}
