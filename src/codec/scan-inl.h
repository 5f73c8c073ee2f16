// EncodeKernels::scan. Included by encode_kernels_simd.cc inside each target's namespace; no include guard on purpose.
//
// One loop over old and new finds what changed, the classes of all units, and the time at every eighth. Memory is what
// it waits for, so this costs little more than comparing. Only where something changed is the rest of the time, within
// the eight units, added up: from the classes, for many changes at once.

// Adds the three looked-up bytes of the rates of each eight classes; a class of 128 or more counts as nothing.
struct RateSums {
  HWY_INLINE explicit RateSums(const ExpandedTables& tables)
      : low(hn::LoadDup128(kBytes, tables.rate_bytes[0].data())),
        middle(hn::LoadDup128(kBytes, tables.rate_bytes[1].data())),
        high(hn::LoadDup128(kBytes, tables.rate_bytes[2].data())) {}

  HWY_INLINE hn::Vec<hn::ScalableTag<std::uint64_t>> Of(Bytes classes) const {
    const auto sum0 = hn::SumsOf8(hn::TableLookupBytesOr0(low, classes));
    const auto sum1 = hn::SumsOf8(hn::TableLookupBytesOr0(middle, classes));
    const auto sum2 = hn::SumsOf8(hn::TableLookupBytesOr0(high, classes));
    return hn::Add(sum0, hn::Add(hn::ShiftLeft<8>(sum1), hn::ShiftLeft<16>(sum2)));
  }

  Bytes low;
  Bytes middle;
  Bytes high;
};

// Appends i + the place of each bit of the mask.
HWY_INLINE std::uint16_t* AppendPlaces(std::uint64_t mask, std::uint32_t i, std::uint16_t* out) {
  std::uint16_t* const end = out + std::popcount(mask);
  // Four are written whether they are there or not: few blocks have more, and a branch on the number would be
  // mispredicted about once a block. The room allows for it.
  std::uint64_t four = 0;
  for (int k = 0; k < 64; k += 16) {
    four |= std::uint64_t{LowestBit(mask)} << k;
    mask &= mask - 1;
  }
  StoreU64(reinterpret_cast<std::uint8_t*>(out), four + i * std::uint64_t{0x0001000100010001});
  out += 4;
  while (mask != 0) {
    *out++ = static_cast<std::uint16_t>(i + LowestBit(mask));
    mask &= mask - 1;
  }
  return end;
}

// How far ahead of the scan memory is asked for: it comes while the changes behind are dealt with. Into the second
// cache only; the first would lose what is in use.
constexpr std::size_t kPrefetchBytes = 12288;

// A line of each in turn: one after the other takes half as long again.
HWY_INLINE void PrefetchBoth(const std::uint8_t* a, const std::uint8_t* b, std::size_t bytes) {
  for (std::size_t line = kPrefetchBytes; line < kPrefetchBytes + bytes; line += 64) {
    __builtin_prefetch(a + line, 0, 2);
    __builtin_prefetch(b + line, 0, 2);
  }
}

// The positions and bits of the changes, which are at these places.
template <typename Unit>
HWY_INLINE void TakeUnits(const ScanChunk& chunk, const std::uint16_t* HWY_RESTRICT places, std::uint32_t count,
                          const FoundChanges& found) {
  const std::uint32_t first_unit = chunk.first_unit;
  std::uint32_t* const HWY_RESTRICT positions = found.positions;
  for (std::uint32_t k = 0; k < count; ++k) positions[k] = first_unit + places[k];
  const std::uint8_t* const HWY_RESTRICT old_units = chunk.old_units;
  const std::uint8_t* const HWY_RESTRICT new_units = chunk.new_units;
  std::uint8_t* const HWY_RESTRICT old_found = found.old_units;
  std::uint8_t* const HWY_RESTRICT new_found = found.new_units;
  for (std::uint32_t k = 0; k < count; ++k) {
    const std::uint32_t place = places[k];
    StoreUnit<Unit>(old_found, k, LoadUnit<Unit>(old_units, place));
    StoreUnit<Unit>(new_found, k, LoadUnit<Unit>(new_units, place));
  }
}

template <typename Unit>
ScanResult ScanUniform(const ScanChunk& chunk, const ExpandedTables& tables, const FoundChanges& found) {
  std::array<std::uint16_t, kChunkUnits + kScanRoom> places;
  std::uint16_t* end = places.data();
  std::uint32_t i = 0;
  for (; i + 64 <= chunk.count; i += 64) {
    const std::size_t at = i * sizeof(Unit);
    PrefetchBoth(chunk.old_units + at, chunk.new_units + at, 64 * sizeof(Unit));
    end = AppendPlaces(ChangedMask<Unit>(chunk.old_units + at, chunk.new_units + at), i, end);
  }
  for (; i < chunk.count; ++i) {
    *end = static_cast<std::uint16_t>(i);
    end += LoadUnit<Unit>(chunk.old_units, i) != LoadUnit<Unit>(chunk.new_units, i);
  }
  const auto count = static_cast<std::uint32_t>(end - places.data());
  const std::uint32_t rate = tables.rates[0];
  TakeUnits<Unit>(chunk, places.data(), count, found);
  for (std::uint32_t k = 0; k < count; ++k) found.begins[k] = found.positions[k] * rate;
  return {count, chunk.time + std::uint64_t{rate} * chunk.count};
}

template <typename Unit>
ScanResult ScanUnits(const ScanChunk& chunk, const ExpandedTables& tables, std::uint32_t* tile_times,
                     const FoundChanges& found) {
  if (tables.uniform) return ScanUniform<Unit>(chunk, tables, found);
  constexpr std::uint32_t kStep = hn::MaxLanes(hn::ScalableTag<std::uint8_t>());
  constexpr std::uint32_t kAtOnce = std::max<std::uint32_t>(64, 2 * kStep);
  const RateSums rate_sums(tables);
  const auto lowest = hn::Set(kBytes, tables.rule.lowest);
  const auto last_class = hn::Set(kBytes, std::uint8_t{kClassCount - 1});
  const int shift = tables.rule.shift;
  const std::uint8_t mask = tables.rule.FieldMask();
  std::uint32_t* const times = tile_times + chunk.first_unit / kTimeBlock;
  // Places within the chunk, and the classes of its units.
  std::array<std::uint16_t, kChunkUnits + kScanRoom> places;
  HWY_ALIGN std::array<std::uint8_t, kChunkUnits> classes;
  std::uint16_t* end = places.data();

  const auto start = static_cast<std::uint32_t>(chunk.time);
  times[0] = start;
  Words time = hn::Set(kWords, start);
  auto total = hn::Zero(kLongs);
  const auto last_lane = hn::IndicesFromVec(kWords, hn::Set(kWords, std::uint32_t{kWordLanes - 1}));
  const auto sums_of = [&](std::uint32_t i) {
    const auto fields = Fields<Unit>(chunk.old_units + i * sizeof(Unit), shift, mask);
    const auto unit_classes = hn::Min(hn::SaturatedSub(fields, lowest), last_class);
    hn::Store(unit_classes, kBytes, classes.data() + i);
    return rate_sums.Of(unit_classes);
  };
  std::uint32_t i = 0;
  for (; i + kAtOnce <= chunk.count; i += kAtOnce) {
    PrefetchBoth(chunk.old_units + i * sizeof(Unit), chunk.new_units + i * sizeof(Unit), kAtOnce * sizeof(Unit));
    for (std::uint32_t j = i; j < i + kAtOnce; j += 2 * kStep) {
      const auto first = sums_of(j);
      const auto second = sums_of(j + kStep);
      total = hn::Add(total, hn::Add(first, second));
      // The sum of a block of eight fits 32 bits.
      const auto sums = hn::ConcatEven(kWords, hn::BitCast(kWords, second), hn::BitCast(kWords, first));
      time = hn::Add(RunningSums(sums), time);
      hn::StoreU(time, kWords, times + j / kTimeBlock + 1);
      time = hn::TableLookupLanes(time, last_lane);
    }
    for (std::uint32_t j = i; j < i + kAtOnce; j += 64) {
      end = AppendPlaces(ChangedMask<Unit>(chunk.old_units + j * sizeof(Unit), chunk.new_units + j * sizeof(Unit)), j,
                         end);
    }
  }
  ScanResult result{0, chunk.time};
  HWY_ALIGN std::uint64_t totals[hn::MaxLanes(hn::ScalableTag<std::uint64_t>())];
  hn::Store(total, kLongs, totals);
  for (const std::uint64_t part : totals) result.time += part;
  for (; i < chunk.count; ++i) {
    const Unit unit = LoadUnit<Unit>(chunk.old_units, i);
    classes[i] = tables.class_of_field[static_cast<std::uint32_t>(unit >> shift) & mask];
    if (i % kTimeBlock == 0) times[i / kTimeBlock] = static_cast<std::uint32_t>(result.time);
    result.time += tables.rates[classes[i]];
    *end = static_cast<std::uint16_t>(i);
    end += unit != LoadUnit<Unit>(chunk.new_units, i);
  }
  times[(chunk.count + kTimeBlock - 1) / kTimeBlock] = static_cast<std::uint32_t>(result.time);
  result.found = static_cast<std::uint32_t>(end - places.data());

  // What belongs to a change is taken along while it is at hand, in the caches.
  TakeUnits<Unit>(chunk, places.data(), result.found, found);
  std::array<std::uint64_t, kChunkUnits + kScanRoom> block_classes;
  std::uint32_t* const HWY_RESTRICT begins = found.begins;
  for (std::uint32_t k = 0; k < result.found; ++k) {
    const std::uint32_t block = places[k] / kTimeBlock;
    begins[k] = times[block];
    std::memcpy(&block_classes[k], classes.data() + block * kTimeBlock, sizeof(block_classes[k]));
  }
  constexpr std::size_t kHalf = kWordLanes / 2;
  const hn::Rebind<std::uint32_t, hn::ScalableTag<std::uint64_t>> half_words;
  for (std::uint32_t k = 0; k < result.found; k += kHalf) {
    // Past the last change there is room, and what is written there means nothing.
    const auto within =
        hn::And(hn::PromoteTo(kLongs, hn::LoadU(half_words, found.positions + k)), hn::Set(kLongs, kTimeBlock - 1));
    const auto not_before = hn::Set(kLongs, ~std::uint64_t{0}) << hn::ShiftLeft<3>(within);
    const auto before = hn::Or(hn::LoadU(kLongs, block_classes.data() + k), not_before);
    const auto sums = hn::BitCast(kWords, rate_sums.Of(hn::BitCast(kBytes, before)));
    const auto narrow = hn::LowerHalf(hn::ConcatEven(kWords, sums, sums));
    hn::StoreU(hn::Add(hn::LoadU(half_words, found.begins + k), narrow), half_words, found.begins + k);
  }
  return result;
}

ScanResult Scan(const ScanChunk& chunk, int unit_bytes, const ExpandedTables& tables, std::uint32_t* times,
                const FoundChanges& found) {
  return WithUnit(unit_bytes, [&]<typename Unit>() { return ScanUnits<Unit>(chunk, tables, times, found); });
}
