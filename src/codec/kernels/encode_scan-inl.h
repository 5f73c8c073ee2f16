// EncodeKernels::scan. Included by encode_kernels_simd.cc inside each target's namespace; no include guard on purpose.
//
// One loop over old and new finds what changed, the classes of all units, and the time at every eighth. Memory is what
// it waits for, so this costs little more than comparing. Only where something changed is the rest of the time, within
// the eight units, added up: from the classes, for many changes at once.

// How far ahead of the scan memory is asked for: it comes while the changes behind are dealt with. Into the second
// cache only; the first would lose what is in use.
constexpr std::size_t kPrefetchBytes = 12288;

// Units that are compared before what changed among them is taken along. Where little is computed for each and memory
// is what the scan waits for, so few that all of them, and their classes, are still in the first cache then: with the
// whole chunk at once it would take an eighth longer. Others have more to compute, and lose as much by the
// interruptions.
constexpr std::uint32_t kScanSpan = kHasBf16Path ? 1024 : kChunkUnits;

// A line of each in turn: one after the other takes half as long again. `kRatio` lines of the second to one of the
// first.
template <std::size_t kRatio>
HWY_INLINE void PrefetchBoth(const std::uint8_t* a, const std::uint8_t* b, std::size_t bytes) {
  for (std::size_t line = 0; line < bytes; line += 64) {
    __builtin_prefetch(a + kPrefetchBytes + line, 0, 2);
    for (std::size_t k = 0; k < kRatio; ++k) {
      __builtin_prefetch(b + kRatio * (kPrefetchBytes + line) + 64 * k, 0, 2);
    }
  }
}

// Where the new units of a chunk come from: they are there,
class UnitsThere {
 public:
  HWY_INLINE explicit UnitsThere(const ScanChunk& chunk) : new_units_(chunk.new_units) {}
  template <typename Unit>
  HWY_INLINE void Next(const std::uint8_t* old_at, std::uint32_t i, std::uint32_t count) const {
    PrefetchBoth<1>(old_at, new_units_ + i * sizeof(Unit), count * sizeof(Unit));
  }
  HWY_INLINE void Last(std::uint32_t /*i*/) const {}

 private:
  const std::uint8_t* new_units_;
};

// or they are made of floats, those that are compared next.
class UnitsMade {
 public:
  HWY_INLINE explicit UnitsMade(const ScanChunk& chunk) : floats_(chunk.floats), made_(chunk.made) {}
  template <typename Unit>
  HWY_INLINE void Next(const std::uint8_t* old_at, std::uint32_t i, std::uint32_t count) const {
    static_assert(sizeof(Unit) == 2);
    PrefetchBoth<2>(old_at, floats_ + i * sizeof(float), count * sizeof(Unit));
    for (std::uint32_t j = i; j < i + count; j += kBf16Step) {
      StoreBf16OfFloats(floats_ + j * sizeof(float), made_ + j * sizeof(Unit));
    }
  }
  HWY_INLINE void Last(std::uint32_t i) const { StoreUnit(made_, i, ToBf16(LoadUnit<std::uint32_t>(floats_, i))); }

 private:
  const std::uint8_t* floats_;
  std::uint8_t* made_;
};

// The positions and bits of the changes at these indices of the chunk; the first is number `first` of the chunk.
template <typename Unit>
HWY_INLINE void TakeUnits(const ScanChunk& chunk, const std::uint16_t* HWY_RESTRICT indices, std::uint32_t count,
                          std::uint32_t first, const FoundChanges& found) {
  const std::uint32_t first_unit = chunk.first_unit;
  std::uint32_t* const HWY_RESTRICT positions = found.positions + first;
  for (std::uint32_t k = 0; k < count; ++k) positions[k] = first_unit + indices[k];
  const std::uint8_t* const HWY_RESTRICT old_units = chunk.old_units;
  const std::uint8_t* const HWY_RESTRICT new_units = chunk.new_units;
  std::uint8_t* const HWY_RESTRICT old_found = found.old_units + first * sizeof(Unit);
  std::uint8_t* const HWY_RESTRICT new_found = found.new_units + first * sizeof(Unit);
  for (std::uint32_t k = 0; k < count; ++k) {
    const std::uint32_t index = indices[k];
    StoreUnit<Unit>(old_found, k, LoadUnit<Unit>(old_units, index));
    StoreUnit<Unit>(new_found, k, LoadUnit<Unit>(new_units, index));
  }
}

template <typename Unit, typename NewUnits>
ScanResult ScanUniform(const ScanChunk& chunk, const ExpandedTables& tables, const FoundChanges& found) {
  std::array<std::uint16_t, kChunkUnits + kScanRoom> indices;
  std::uint16_t* end = indices.data();
  const NewUnits next_units(chunk);
  std::uint32_t i = 0;
  for (; i + 64 <= chunk.count; i += 64) {
    const std::size_t at = i * sizeof(Unit);
    next_units.template Next<Unit>(chunk.old_units + at, i, 64);
    end = AppendPositions(ChangedMask<Unit>(chunk.old_units + at, chunk.new_units + at), i, end);
  }
  for (; i < chunk.count; ++i) {
    next_units.Last(i);
    *end = static_cast<std::uint16_t>(i);
    end += LoadUnit<Unit>(chunk.old_units, i) != LoadUnit<Unit>(chunk.new_units, i);
  }
  const auto count = static_cast<std::uint32_t>(end - indices.data());
  const std::uint32_t rate = tables.rates[0];
  TakeUnits<Unit>(chunk, indices.data(), count, 0, found);
  for (std::uint32_t k = 0; k < count; ++k) found.ends[k] = (found.positions[k] + 1) * rate;
  return {count, chunk.time + std::uint64_t{rate} * chunk.count};
}

// The sum of many vectors of sums of blocks, which have 27 bits each.
class ChunkTotal {
 public:
  HWY_INLINE ChunkTotal() : sum_(hn::Zero(kU32)), wide_sum_(hn::Zero(kU64)) {}
  HWY_INLINE void Add(VecU32 sums) {
    if constexpr (kFits) {
      sum_ = hn::Add(sum_, sums);
    } else {
      const auto even = hn::And(hn::BitCast(kU64, sums), hn::Set(kU64, 0xffffffff));
      wide_sum_ = hn::Add(wide_sum_, hn::Add(even, hn::ShiftRight<32>(hn::BitCast(kU64, sums))));
    }
  }
  [[nodiscard]] HWY_INLINE std::uint64_t Sum() const {
    HWY_ALIGN std::uint32_t narrow[kLanesU32];
    HWY_ALIGN std::uint64_t wide[kLanesU64];
    hn::Store(sum_, kU32, narrow);
    hn::Store(wide_sum_, kU64, wide);
    std::uint64_t sum = 0;
    for (const std::uint32_t lane : narrow) sum += lane;
    for (const std::uint64_t lane : wide) sum += lane;
    return sum;
  }

 private:
  // With long vectors a chunk has so few that 32 bits hold the sum of a lane.
  static constexpr bool kFits = kChunkUnits / kSumUnits <= 32;
  VecU32 sum_;
  VecU64 wide_sum_;
};

template <typename Unit, bool kBf16Path, typename NewUnits>
ScanResult ScanUnits(const ScanChunk& chunk, const ExpandedTables& tables, std::uint32_t* tile_times,
                     const FoundChanges& found) {
  constexpr std::uint32_t kAtOnce = std::max<std::uint32_t>(64, kSumUnits);
  static_assert(kScanSpan % kAtOnce == 0);  // only the chunk's last span ends in units that are too few
  const RateSums<Unit, kBf16Path> rate_sums(tables.rate_bytes, tables.rule);
  const RunningSum running_sum;
  const int shift = tables.rule.shift;
  const std::uint8_t mask = tables.rule.FieldMask();
  std::uint32_t* const HWY_RESTRICT times = tile_times + chunk.first_unit / kTimeBlock;
  const std::uint32_t count = chunk.count;

  const auto start = static_cast<std::uint32_t>(chunk.time);
  times[0] = start;
  VecU32 time = hn::Set(kU32, start);
  ChunkTotal total;
  const NewUnits next_units(chunk);
  ScanResult result{0, chunk.time};
  std::array<std::uint64_t, kChunkUnits + kScanRoom> block_classes;  // of the eight units that a change is among
  for (std::uint32_t span_begin = 0; span_begin < count; span_begin += kScanSpan) {
    // Positions within the chunk, and the classes of the span's units.
    std::array<std::uint16_t, kScanSpan + kScanRoom> indices;
    HWY_ALIGN std::array<std::uint8_t, kScanSpan> classes;
    std::uint16_t* end = indices.data();
    const std::uint32_t span_end = std::min(span_begin + kScanSpan, count);
    std::uint32_t i = span_begin;
    for (; i + kAtOnce <= span_end; i += kAtOnce) {
      const std::uint8_t* const old_at = chunk.old_units + i * sizeof(Unit);
      const std::uint8_t* const new_at = chunk.new_units + i * sizeof(Unit);
      next_units.template Next<Unit>(old_at, i, kAtOnce);
      // Compared before anything is stored, and all at once: so the compiler loads what is old only once, for both.
      std::array<std::uint64_t, kAtOnce / 64> changed;
#pragma GCC unroll 4
      for (std::uint32_t j = 0; j < kAtOnce; j += 64) {
        changed[j / 64] = ChangedMask<Unit>(old_at + j * sizeof(Unit), new_at + j * sizeof(Unit));
      }
      for (std::uint32_t j = 0; j < kAtOnce; j += kSumUnits) {
        const auto first_classes = rate_sums.Classes(old_at + j * sizeof(Unit));
        const auto second_classes = rate_sums.Classes(old_at + (j + kClassStep) * sizeof(Unit));
        hn::Store(first_classes, kU8, classes.data() + (i - span_begin) + j);
        hn::Store(second_classes, kU8, classes.data() + (i - span_begin) + j + kClassStep);
        const VecU32 sums = rate_sums.OfBlocks(first_classes, second_classes);
        total.Add(sums);
        const VecU32 running = running_sum.Of(sums);
        hn::StoreU(hn::Add(running, time), kU32, times + (i + j) / kTimeBlock + 1);
        time = hn::Add(time, running_sum.Last(running));
      }
#pragma GCC unroll 4
      for (std::uint32_t j = 0; j < kAtOnce; j += 64) end = AppendPositions(changed[j / 64], i + j, end);
    }
    if (span_end == count) {
      // The chunk's last units, too few for vectors.
      result.time += total.Sum();
      for (; i < count; ++i) {
        next_units.Last(i);
        const Unit unit = LoadUnit<Unit>(chunk.old_units, i);
        const std::uint8_t unit_class = tables.class_of_field[static_cast<std::uint32_t>(unit >> shift) & mask];
        classes[rate_sums.Begin((i - span_begin) / kTimeBlock) + i % kTimeBlock] = rate_sums.ByteOf(unit_class);
        if (i % kTimeBlock == 0) times[i / kTimeBlock] = static_cast<std::uint32_t>(result.time);
        result.time += tables.rates[unit_class];
        *end = static_cast<std::uint16_t>(i);
        end += unit != LoadUnit<Unit>(chunk.new_units, i);
      }
      times[(count + kTimeBlock - 1) / kTimeBlock] = static_cast<std::uint32_t>(result.time);
    }
    // What belongs to a change is taken along while it is at hand, in the first cache.
    const auto in_span = static_cast<std::uint32_t>(end - indices.data());
    TakeUnits<Unit>(chunk, indices.data(), in_span, result.found, found);
    std::uint32_t* const HWY_RESTRICT block_begins = found.ends + result.found;
    for (std::uint32_t k = 0; k < in_span; ++k) {
      const std::uint32_t block = indices[k] / kTimeBlock;
      block_begins[k] = times[block];
      std::memcpy(&block_classes[result.found + k], classes.data() + rate_sums.Begin(block - span_begin / kTimeBlock),
                  sizeof(block_classes[0]));
    }
    result.found += in_span;
  }

  constexpr std::size_t kHalf = kLanesU32 / 2;
  const hn::Rebind<std::uint32_t, hn::ScalableTag<std::uint64_t>> half_words;
  for (std::uint32_t k = 0; k < result.found; k += kHalf) {
    // Past the last change there is room, and what is written there means nothing.
    const auto within =
        hn::And(hn::PromoteTo(kU64, hn::LoadU(half_words, found.positions + k)), hn::Set(kU64, kTimeBlock - 1));
    const auto after = hn::ShiftLeft<8>(hn::Set(kU64, ~std::uint64_t{0}) << hn::ShiftLeft<3>(within));
    const auto up_to_it = hn::Or(hn::LoadU(kU64, block_classes.data() + k), after);
    const auto sums = hn::BitCast(kU32, rate_sums.Of(hn::BitCast(kU8, up_to_it)));
    const auto narrow = hn::LowerHalf(hn::ConcatEven(kU32, sums, sums));
    hn::StoreU(hn::Add(hn::LoadU(half_words, found.ends + k), narrow), half_words, found.ends + k);
  }
  return result;
}

template <typename Unit, typename NewUnits>
ScanResult ScanWith(const ScanChunk& chunk, const ExpandedTables& tables, std::uint32_t* times,
                    const FoundChanges& found) {
  if (tables.uniform) return ScanUniform<Unit, NewUnits>(chunk, tables, found);
  if constexpr (kHasBf16Path && sizeof(Unit) == 2) {
    if (IsBf16Rule(tables.rule)) return ScanUnits<Unit, true, NewUnits>(chunk, tables, times, found);
  }
  return ScanUnits<Unit, false, NewUnits>(chunk, tables, times, found);
}

ScanResult Scan(const ScanChunk& chunk, int unit_bytes, const ExpandedTables& tables, std::uint32_t* times,
                const FoundChanges& found) {
  if (chunk.floats != nullptr) return ScanWith<std::uint16_t, UnitsMade>(chunk, tables, times, found);
  return WithUnit(unit_bytes, [&]<typename Unit>() { return ScanWith<Unit, UnitsThere>(chunk, tables, times, found); });
}
