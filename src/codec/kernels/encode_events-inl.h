// EncodeKernels::make_events. Included by encode_kernels_simd.cc inside each target's namespace; no include guard on
// purpose.
//
// Nearly all changes wait less than a horizon, and most have a magnitude without extra bits: exactly two events each.
// The events of a vector of such changes are made and written together. Where some have extra bits, the
// others' events are made together all the same. A change that is rarer ends its vector and goes through
// SparseEventWriter, which defines the result; the next vector begins after it.

// kLanesU32 units, one in each lane.
template <typename Unit>
HWY_INLINE VecU32 LoadWidened(const std::uint8_t* units) {
  const hn::Rebind<Unit, hn::ScalableTag<std::uint32_t>> narrow;
  const hn::Repartition<std::uint8_t, decltype(narrow)> bytes;
  const auto loaded = hn::BitCast(narrow, hn::LoadU(bytes, units));
  if constexpr (sizeof(Unit) == 4) {
    return loaded;
  } else {
    return hn::PromoteTo(kU32, loaded);
  }
}

// ToOrdinal of every lane; `sign_magnitude` is all ones or nothing.
template <typename Unit>
HWY_INLINE VecU32 OrdinalsOf(VecU32 units, VecU32 sign_magnitude) {
  constexpr int kTop = 8 * static_cast<int>(sizeof(Unit)) - 1;
  const auto negative = hn::Sub(hn::Zero(kU32), hn::ShiftRight<kTop>(units));
  return hn::Xor(units, hn::And(hn::And(negative, sign_magnitude), hn::Set(kU32, (1u << kTop) - 1)));
}

// Appends the changes from k on that are before the next rare one, at most kLanesU32; returns how many.
// REQUIRES: 0 < k < changes.changed.
template <typename Unit>
HWY_INLINE std::size_t AppendTogether(const SparseChanges& changes, const ExpandedTables& tables, std::size_t k,
                                      SparseEventWriter<Unit>& writer) {
  constexpr int kBits = 8 * static_cast<int>(sizeof(Unit));
  constexpr std::uint32_t kUnitMask = sizeof(Unit) == 4 ? 0xffffffff : (std::uint64_t{1} << kBits) - 1;
  const auto unit_mask = hn::Set(kU32, kUnitMask);
  const auto one = hn::Set(kU32, 1);
  const auto position = hn::LoadU(kU32, changes.positions + k);
  const auto gap = hn::Sub(hn::Sub(position, hn::LoadU(kU32, changes.positions + k - 1)), one);
  const auto old_units = LoadWidened<Unit>(changes.old_units + k * sizeof(Unit));
  const auto field =
      hn::And(hn::ShiftRightSame(old_units, tables.rule.shift), hn::Set(kU32, std::uint32_t{tables.rule.FieldMask()}));
  const auto lowest = hn::Set(kU32, std::uint32_t{tables.rule.lowest});
  const auto unit_class =
      hn::Min(hn::Sub(hn::Max(field, lowest), lowest), hn::Set(kU32, std::uint32_t{kClassCount - 1}));
  const auto rate = LookUpRates(tables, unit_class);
  const auto wait_and_rate = hn::Sub(hn::LoadU(kU32, changes.ends + k), hn::LoadU(kU32, changes.ends + k - 1));
  const auto wait = hn::Sub(wait_and_rate, rate);

  const auto sign_magnitude =
      hn::Set(kU32, tables.rule.order == Order::kSignMagnitude ? ~std::uint32_t{0} : std::uint32_t{0});
  const auto from = OrdinalsOf<Unit>(old_units, sign_magnitude);
  const auto to = OrdinalsOf<Unit>(LoadWidened<Unit>(changes.new_units + k * sizeof(Unit)), sign_magnitude);
  const auto up = hn::And(hn::Sub(to, from), unit_mask);
  const auto down = hn::Ne(hn::ShiftRight<kBits - 1>(up), hn::Zero(kU32));
  const auto magnitude = hn::IfThenElse(down, hn::And(hn::Sub(hn::Zero(kU32), up), unit_mask), up);
  const auto n = hn::Sub(magnitude, one);

  const auto has_extra = hn::Gt(n, hn::Set(kU32, std::uint32_t{kPlainSymbols - 1}));
  auto packed = LookUpSixteen(tables.plain_symbols[0].data(), unit_class);
  for (std::uint32_t s = 1; s < kPlainSymbols; ++s) {
    packed =
        hn::IfThenElse(hn::Eq(n, hn::Set(kU32, s)), LookUpSixteen(tables.plain_symbols[s].data(), unit_class), packed);
  }
  const auto rare =
      hn::Or(hn::Or(hn::Gt(wait, hn::Set(kU32, kHorizon - 1)), hn::Gt(gap, hn::Set(kU32, writer.safe_gap()))),
             hn::AndNot(has_extra, hn::Eq(packed, hn::Set(kU32, kNoSymbol))));
  // What is read after the last change means nothing.
  const std::uint64_t stop = MaskBits(kU32, rare) | (std::uint64_t{1} << std::min(kLanesU32, changes.changed - k));
  std::size_t count = kLanesU32;
  if (stop != std::uint64_t{1} << kLanesU32) [[unlikely]] {
    count = LowestBit(stop);
    // Stays a branch: the next vector need not wait for this one to know where it begins.
    asm volatile("" : "+r"(count));  // NOLINT(hicpp-no-assembler)
  }
  const std::uint64_t counted = (std::uint64_t{1} << count) - 1;

  const auto waiting_begin = WaitingOf(wait);
  const auto waiting_end = WaitingOf(hn::Min(wait_and_rate, hn::Set(kU32, kHorizon)));
  const auto fold = hn::Set(kU32, kFold);
  const auto change_start = hn::IfThenElse(down, hn::Add(fold, waiting_end), hn::Sub(fold, waiting_begin));
  const auto change_width = hn::Sub(waiting_begin, waiting_end);
  const auto symbol_start = hn::And(packed, hn::Set(kU32, 0xffff0000));
  const auto symbol_width = hn::ShiftLeft<16>(packed);
  const auto single_steps = static_cast<std::uint32_t>(std::popcount(MaskBits(kU32, hn::Eq(magnitude, one)) & counted));
  static_assert(sizeof(RansEvent) == 8 && offsetof(RansEvent, width) == 4);
  RansEvent* event = writer.next_event();
  hn::StoreInterleaved4(change_start, change_width, symbol_start, symbol_width, kU32, &event->start);
  std::uint64_t extra_lanes = MaskBits(kU32, has_extra) & counted;
  if (extra_lanes == 0) {
    writer.Skip(event + 2 * count, single_steps);
    return count;
  }
  // Few changes have extra bits. For each of these the events after it move up by one, as many as a vector of changes
  // can have: what is behind them means nothing.
  HWY_ALIGN std::uint32_t magnitudes[kLanesU32];
  HWY_ALIGN std::uint32_t classes[kLanesU32];
  hn::Store(magnitude, kU32, magnitudes);
  hn::Store(unit_class, kU32, classes);
  for (; extra_lanes != 0; extra_lanes &= extra_lanes - 1) {
    const std::size_t lane = LowestBit(extra_lanes);
    const Bucket bucket = BucketOf(magnitudes[lane]);
    std::uint32_t* const after = &event[2 * lane + 2].start;
    const auto events0 = hn::LoadU(kU32, after);
    const auto events1 = hn::LoadU(kU32, after + kLanesU32);
    const auto events2 = hn::LoadU(kU32, after + 2 * kLanesU32);
    const auto events3 = hn::LoadU(kU32, after + 3 * kLanesU32);
    event[2 * lane + 1] = SymbolOf(tables, classes[lane], bucket.symbol);
    AppendRawBits(bucket.extra, bucket.extra_bits, event + 2 * lane + 2);
    hn::StoreU(events0, kU32, after + 2);
    hn::StoreU(events1, kU32, after + 2 + kLanesU32);
    hn::StoreU(events2, kU32, after + 2 + 2 * kLanesU32);
    hn::StoreU(events3, kU32, after + 2 + 3 * kLanesU32);
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
        const std::size_t most = std::min(kLanesU32, changes.changed - k);
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
