// What the kernels of the sparse modes share: vectors of units, classes, rates and times. Included inside each target's
// namespace, after simd_common-inl.h; no include guard on purpose.

// Units are loaded as bytes: they may lie at any address.
template <typename Unit>
HWY_INLINE hn::Vec<hn::ScalableTag<Unit>> LoadUnits(const std::uint8_t* from) {
  return hn::BitCast(hn::ScalableTag<Unit>(), hn::LoadU(kU8, from));
}

// A bit for each of 64 units: set where old and new differ.
template <typename Unit>
HWY_INLINE std::uint64_t ChangedMask(const std::uint8_t* old_units, const std::uint8_t* new_units) {
  const hn::ScalableTag<Unit> units;
  constexpr std::size_t kCount = hn::MaxLanes(hn::ScalableTag<Unit>());
  const auto differ = [&](std::size_t i) HWY_ATTR {
    return hn::Ne(LoadUnits<Unit>(old_units + i * sizeof(Unit)), LoadUnits<Unit>(new_units + i * sizeof(Unit)));
  };
#if WW_AVX512
  // Two masks of the most common size become one where they are.
  if constexpr (sizeof(Unit) == 2) return _mm512_kunpackd(differ(kCount).raw, differ(0).raw);
#endif
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < 64; i += kCount) mask |= MaskBits(units, differ(i)) << i;
  return mask;
}

using VecU8 = hn::Vec<hn::ScalableTag<std::uint8_t>>;

// The class fields of the next Lanes(kU8) units, one a byte.
template <typename Unit>
HWY_INLINE VecU8 Fields(const std::uint8_t* from, int shift, std::uint8_t mask) {
  const std::size_t bytes = hn::Lanes(kU8);
  const auto field = [&](std::size_t k) {
    const hn::ScalableTag<Unit> units;
    return hn::BitCast(kU8, hn::And(hn::ShiftRightSame(LoadUnits<Unit>(from + k * bytes), shift),
                                    hn::Set(units, static_cast<Unit>(mask))));
  };
  if constexpr (sizeof(Unit) == 1) {
    return field(0);
  } else {
    // The field is the lowest byte of its unit: halve the units until that byte is all that is left.
    const auto narrow = [&]<typename Half>(VecU8 high, VecU8 low) {
      const hn::ScalableTag<Half> halves;
      return hn::BitCast(kU8, hn::ConcatEven(halves, hn::BitCast(halves, high), hn::BitCast(halves, low)));
    };
    const auto from16 = [&](VecU8 high, VecU8 low) { return narrow.template operator()<std::uint8_t>(high, low); };
    if constexpr (sizeof(Unit) == 2) {
      return from16(field(1), field(0));
    } else {
      const auto from32 = [&](VecU8 high, VecU8 low) { return narrow.template operator()<std::uint16_t>(high, low); };
      if constexpr (sizeof(Unit) == 4) {
        return from16(from32(field(3), field(2)), from32(field(1), field(0)));
      } else {
        const auto from64 = [&](VecU8 high, VecU8 low) { return narrow.template operator()<std::uint32_t>(high, low); };
        return from16(from32(from64(field(7), field(6)), from64(field(5), field(4))),
                      from32(from64(field(3), field(2)), from64(field(1), field(0))));
      }
    }
  }
}

using VecU64 = hn::Vec<hn::ScalableTag<std::uint64_t>>;
constexpr std::size_t kLanesU64 = hn::MaxLanes(hn::ScalableTag<std::uint64_t>());
constexpr std::size_t kLanesU32 = hn::MaxLanes(hn::ScalableTag<std::uint32_t>());
static_assert(kLanes % kLanesU32 == 0 && kLanesU32 >= 4);

// table[index mod 16] of every lane.
HWY_INLINE VecU32 LookUpSixteen(const std::uint32_t* table, VecU32 index) {
#if WW_AVX512
  return VecU32{_mm512_permutexvar_epi32(index.raw, hn::LoadU(kU32, table).raw)};
#elif HWY_MAX_BYTES >= 32
  const auto within = hn::IndicesFromVec(kU32, hn::And(index, hn::Set(kU32, 7)));
  const auto low = hn::TableLookupLanes(hn::LoadU(kU32, table), within);
  const auto high = hn::TableLookupLanes(hn::LoadU(kU32, table + 8), within);
  return hn::IfThenElse(hn::Ne(hn::And(index, hn::Set(kU32, 8)), hn::Zero(kU32)), high, low);
#else
  HWY_ALIGN std::uint32_t lanes[kLanesU32];
  hn::Store(index, kU32, lanes);
  for (std::uint32_t& lane : lanes) lane = table[lane & 15];
  return hn::Load(kU32, lanes);
#endif
}

HWY_INLINE VecU32 LookUpRates(const ExpandedTables& tables, VecU32 classes) {
  return LookUpSixteen(tables.rates.data(), classes);
}

// Even lanes and odd lanes as 64-bit numbers, and back.
HWY_INLINE auto OddLanes(VecU32 v) { return hn::BitCast(kU32, hn::ShiftRight<32>(hn::BitCast(kU64, v))); }

// (a * b) >> bits, where the result fits 32 bits.
template <int kBits>
HWY_INLINE VecU32 MultiplyShift(VecU32 a, VecU32 b) {
  const auto even = hn::ShiftRight<kBits>(hn::MulEven(a, b));
  const auto odd = hn::ShiftRight<kBits>(hn::MulEven(OddLanes(a), OddLanes(b)));
  return hn::OddEven(hn::BitCast(kU32, hn::ShiftLeft<32>(odd)), hn::BitCast(kU32, even));
}

// table[index] of every lane, for a table of eight numbers, given twice.
HWY_INLINE VecU32 LookUpEight(const std::array<std::uint32_t, 16>& table, VecU32 index) {
#if HWY_MAX_BYTES >= 32
  return hn::TableLookupLanes(hn::Load(kU32, table.data()), hn::IndicesFromVec(kU32, index));
#else
  HWY_ALIGN std::uint32_t lanes[kLanesU32];
  hn::Store(index, kU32, lanes);
  for (std::uint32_t& lane : lanes) lane = table[lane];
  return hn::Load(kU32, lanes);
#endif
}

struct LaneTables {
  HWY_ALIGN std::array<std::uint32_t, 16> knot;
  HWY_ALIGN std::array<std::uint32_t, 16> drop;
  HWY_ALIGN std::array<std::uint32_t, 16> inverse;
};
constexpr LaneTables MakeLaneTables() {
  LaneTables tables{};
  for (std::size_t k = 0; k < 16; ++k) {
    tables.knot[k] = waiting_internal::kKnots[k % 8];
    tables.drop[k] = waiting_internal::kSegments.drop[k % 8];
    tables.inverse[k] = waiting_internal::kSegments.inverse[k % 8];
  }
  return tables;
}
constexpr LaneTables kLaneTables = MakeLaneTables();

// Waiting() of every lane.
HWY_INLINE VecU32 WaitingOf(VecU32 t) {
  using waiting_internal::kSegmentBits;
  const auto segment = hn::And(hn::ShiftRight<kSegmentBits>(t), hn::Set(kU32, 7));
  const auto within = hn::And(t, hn::Set(kU32, waiting_internal::kSegmentMask));
  const auto fall = MultiplyShift<kSegmentBits>(LookUpEight(kLaneTables.drop, segment), within);
  return (LookUpEight(kLaneTables.knot, segment) - fall) >> hn::ShiftRight<kOctaveBits>(t);
}

// --- rates of many units ---

// Keeps the compiler from making a constant again wherever it is used, inside of loops.
template <typename Vec>
HWY_INLINE Vec Kept(Vec v) {
#if WW_AVX512
  asm("" : "+v"(v.raw));  // NOLINT(hicpp-no-assembler)
#elif HWY_TARGET == HWY_AVX2
  asm("" : "+x"(v.raw));  // NOLINT(hicpp-no-assembler)
#endif
  return v;
}

// What one vector of sums is made of.
constexpr std::uint32_t kClassStep = hn::MaxLanes(hn::ScalableTag<std::uint8_t>());
constexpr std::uint32_t kSumUnits = 2 * kClassStep;
constexpr std::uint32_t kSumBlocks = kSumUnits / kTimeBlock;
static_assert(kSumBlocks == kLanesU32);

// Where bytes can be taken from anywhere in two vectors, there is a faster path for bf16: if the fields of units of two
// bytes are its exponents, and the classes among them end below 128.
constexpr bool kHasBf16Path = HWY_TARGET == HWY_AVX3_DL;
inline bool IsBf16Rule(const ClassRule& rule) {
  return rule.shift == 7 && rule.bits == 8 && rule.lowest + kClassCount <= 128;
}

#if HWY_TARGET == HWY_AVX3_DL
constexpr std::array<std::uint8_t, 64> MakeOddBytes() {
  std::array<std::uint8_t, 64> bytes{};
  for (std::uint8_t k = 0; k < 64; ++k) bytes[k] = static_cast<std::uint8_t>(2 * k + 1);
  return bytes;
}
// For each plane: bytes 0 and 1 of a sum to bytes `plane` and `plane` + 1 of a number; its byte 2 is always 0.
constexpr std::array<std::array<std::uint8_t, 64>, 3> MakeJoin() {
  std::array<std::array<std::uint8_t, 64>, 3> join{};
  for (std::size_t plane = 0; plane < 3; ++plane) {
    for (std::size_t k = 0; k < 64; ++k) {
      const std::size_t byte = k % 4 - plane;
      join[plane][k] = static_cast<std::uint8_t>(k / 4 * 8 + (byte < 2 ? byte : 2));
    }
  }
  return join;
}
HWY_ALIGN constexpr std::array<std::uint8_t, 64> kOddBytes = MakeOddBytes();
HWY_ALIGN constexpr std::array<std::array<std::uint8_t, 64>, 3> kJoin = MakeJoin();
#endif

// Sums of the rates of blocks of eight units. A rate has three bytes: each is looked up among the 16 classes, and the
// sum-of-eight instruction adds them. kBf16Path: IsBf16Rule, and kHasBf16Path.
template <typename Unit, bool kBf16Path>
class RateSums {
 public:
  using Planes = std::array<std::array<std::uint8_t, kClassCount>, 3>;

  // `planes` are the bytes of the rates, lowest first.
  HWY_INLINE RateSums(const Planes& planes, const ClassRule& rule)
      : low_(Plane(planes[0], rule)),
        middle_(Plane(planes[1], rule)),
        high_(Plane(planes[2], rule)),
        lowest_(Kept(hn::Set(kU8, rule.lowest))),
        last_(Kept(hn::Set(kU8, static_cast<std::uint8_t>(First(rule) + kClassCount - 1)))),
        first_(First(rule)),
        shift_(rule.shift),
        mask_(rule.FieldMask()) {}

  // The classes of the next kClassStep units, a byte each (ByteOf).
  HWY_INLINE VecU8 Classes(const std::uint8_t* units) const {
#if HWY_TARGET == HWY_AVX3_DL
    if constexpr (kBf16Path) {
      // Twice the unit has the exponent in its upper byte.
      const auto upper = [&](const std::uint8_t* from) HWY_ATTR {
        const auto loaded = LoadUnits<Unit>(from);
        return hn::Add(loaded, loaded);
      };
      const VecU8 fields{_mm512_permutex2var_epi8(upper(units).raw, Kept(hn::Load(kU8, kOddBytes.data())).raw,
                                                  upper(units + kClassStep).raw)};
      return hn::Min(hn::Max(fields, lowest_), last_);
    }
#endif
    return hn::Min(hn::SaturatedSub(FieldsOf(units), lowest_), last_);
  }
  // How Classes would give a class, and where the classes of a block begin among those of many vectors.
  [[nodiscard]] HWY_INLINE std::uint8_t ByteOf(std::uint8_t unit_class) const {
    return static_cast<std::uint8_t>(first_ + unit_class);
  }
  static HWY_INLINE std::uint32_t Begin(std::uint32_t block) {
    if constexpr (kMixed) {
      // The two halves of a vector's blocks in turn.
      constexpr std::uint32_t kBlocks = kClassStep / kTimeBlock;
      const std::uint32_t within = block % kBlocks;
      block = block - within + (2 * within + within / (kBlocks / 2)) % kBlocks;
    }
    return block * kTimeBlock;
  }

  // Sums of each eight; a byte of 128 or more counts as nothing.
  HWY_INLINE VecU64 Of(VecU8 classes) const {
    const auto middle = hn::ShiftLeft<8>(Sums(middle_, classes));
    const auto high = hn::ShiftLeft<16>(Sums(high_, classes));
    return hn::Add(Sums(low_, classes), hn::Add(middle, high));
  }

  // The same of two vectors from Classes, a block a lane, in order. A sum has 27 bits in a lane of 64.
  HWY_INLINE VecU32 OfBlocks(VecU8 first, VecU8 second) const {
#if HWY_TARGET == HWY_AVX3_DL
    // Each sum's two bytes to where they count.
    const auto join = [&](VecU8 plane, const std::array<std::uint8_t, 64>& bytes) HWY_ATTR {
      return VecU32{_mm512_permutex2var_epi8(Sums(plane, first).raw, Kept(hn::Load(kU8, bytes.data())).raw,
                                             Sums(plane, second).raw)};
    };
    return hn::Add(join(low_, kJoin[0]), hn::Add(join(middle_, kJoin[1]), join(high_, kJoin[2])));
#elif HWY_TARGET == HWY_AVX3
    HWY_ALIGN static constexpr std::uint32_t kOrder[16] = {0, 4, 8, 12, 2, 6, 10, 14, 16, 20, 24, 28, 18, 22, 26, 30};
    HWY_ALIGN static constexpr std::uint32_t kPlainOrder[16] = {0,  2,  4,  6,  8,  10, 12, 14,
                                                                16, 18, 20, 22, 24, 26, 28, 30};
    const auto order = hn::Load(kU32, kMixed ? kOrder : kPlainOrder);
    return VecU32{_mm512_permutex2var_epi32(Of(first).raw, order.raw, Of(second).raw)};
#elif HWY_TARGET == HWY_AVX2
    HWY_ALIGN static constexpr std::uint32_t kOrder[8] = {0, 4, 2, 6, 1, 5, 3, 7};
    HWY_ALIGN static constexpr std::uint32_t kPlainOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    const auto both = hn::BitCast(kU32, hn::Or(Of(first), hn::ShiftLeft<32>(Of(second))));
    return hn::TableLookupLanes(both, hn::SetTableIndices(kU32, kMixed ? kOrder : kPlainOrder));
#else
    return hn::ConcatEven(kU32, hn::BitCast(kU32, Of(second)), hn::BitCast(kU32, Of(first)));
#endif
  }
  HWY_INLINE VecU32 OfBlocks(const std::uint8_t* units) const {
    return OfBlocks(Classes(units), Classes(units + kClassStep * sizeof(Unit)));
  }

 private:
  // Units of two bytes come out of Classes with their blocks in another order, where that is faster.
  static constexpr bool kMixed = sizeof(Unit) == 2 && (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2);

  static std::uint8_t First(const ClassRule& rule) { return kBf16Path ? rule.lowest : 0; }
  // A lookup looks at four bits, so that classes may begin anywhere, if the table is turned.
  static HWY_INLINE VecU8 Plane(const std::array<std::uint8_t, kClassCount>& plane, const ClassRule& rule) {
    const auto table = hn::LoadDup128(kU8, plane.data());
    if constexpr (!kBf16Path) return Kept(table);
    const auto index = hn::Sub(hn::Iota(kU8, 0), hn::Set(kU8, rule.lowest));
    return Kept(hn::TableLookupBytes(table, hn::And(index, hn::Set(kU8, std::uint8_t{kClassCount - 1}))));
  }

  static HWY_INLINE VecU64 Sums(VecU8 plane, VecU8 classes) {
    return hn::SumsOf8(hn::TableLookupBytesOr0(plane, classes));
  }

  HWY_INLINE VecU8 FieldsOf(const std::uint8_t* units) const {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
    if constexpr (kMixed) {
      const hn::ScalableTag<std::uint16_t> u16;
      const auto field = [&](std::size_t k) HWY_ATTR {
        return hn::And(hn::ShiftRightSame(LoadUnits<Unit>(units + k * kClassStep), shift_),
                       hn::Set(u16, std::uint16_t{mask_}));
      };
#if HWY_TARGET == HWY_AVX3
      return VecU8{_mm512_packus_epi16(field(0).raw, field(1).raw)};
#else
      return VecU8{_mm256_packus_epi16(field(0).raw, field(1).raw)};
#endif
    }
#endif
    return Fields<Unit>(units, shift_, mask_);
  }

  VecU8 low_;
  VecU8 middle_;
  VecU8 high_;
  VecU8 lowest_;
  VecU8 last_;
  std::uint8_t first_;
  int shift_;
  std::uint8_t mask_;
};

// OfBlocks() of kSumUnits units after each other.
//
// One chain leads from units to classes to sums to times, and it is longer than what a processor looks ahead at once.
// So where there are registers enough, classes are taken two steps, and sums one step, before they are asked for.
template <typename Unit, bool kBf16Path>
class SumsAhead {
 public:
  // There are `steps` times kSumUnits units. REQUIRES: steps != 0.
  HWY_INLINE SumsAhead(const RateSums<Unit, kBf16Path>& rate_sums, const std::uint8_t* units, std::uint32_t steps)
      : rate_sums_(rate_sums), units_(units), last_(units + std::size_t{steps - 1} * kStepBytes) {
#if WW_AVX512
    const auto first = TakeFirst();
    sums_ = rate_sums.OfBlocks(first, TakeSecond());
    first_ = TakeFirst();
    second_ = TakeSecond();
#endif
  }

#if WW_AVX512
  HWY_INLINE VecU32 Next() {
    const auto first = TakeFirst();
    const auto second = TakeSecond();
    const VecU32 sums = sums_;
    sums_ = rate_sums_.OfBlocks(first_, second_);
    first_ = first;
    second_ = second;
    return sums;
  }
#else
  HWY_INLINE VecU32 Next() {
    const auto first = TakeFirst();
    return rate_sums_.OfBlocks(first, TakeSecond());
  }
#endif

 private:
  static constexpr std::size_t kStepBytes = kSumUnits * sizeof(Unit);

  HWY_INLINE VecU8 TakeFirst() const { return rate_sums_.Classes(units_); }
  // After the last step comes the last step again.
  HWY_INLINE VecU8 TakeSecond() {
    const auto classes = rate_sums_.Classes(units_ + kClassStep * sizeof(Unit));
    units_ += units_ != last_ ? kStepBytes : 0;
    return classes;
  }

  const RateSums<Unit, kBf16Path>& rate_sums_;
  const std::uint8_t* units_;
  const std::uint8_t* last_;
#if WW_AVX512
  VecU8 first_;
  VecU8 second_;
  VecU32 sums_;
#endif
};

// RunningSums() and the last lane of it, with constants that are made once.
class RunningSum {
 public:
#if WW_AVX512
  HWY_INLINE RunningSum()
      : within_half_(Kept(hn::Load(kU32, kWithinHalf))),
        last_of_half_(Kept(hn::Set(kU32, 7))),
        last_(Kept(hn::Set(kU32, 15))) {}
  HWY_INLINE VecU32 Of(VecU32 v) const {
    v = hn::Add(v, hn::ShiftLeftLanes<1>(kU32, v));
    v = hn::Add(v, hn::ShiftLeftLanes<2>(kU32, v));
    // The last lane of four to the four after it; then that of eight.
    v = VecU32{_mm512_add_epi32(v.raw, _mm512_maskz_permutexvar_epi32(0xf0f0, within_half_.raw, v.raw))};
    return VecU32{_mm512_add_epi32(v.raw, _mm512_maskz_permutexvar_epi32(0xff00, last_of_half_.raw, v.raw))};
  }
  HWY_INLINE VecU32 Last(VecU32 sums) const { return VecU32{_mm512_permutexvar_epi32(last_.raw, sums.raw)}; }

 private:
  HWY_ALIGN static constexpr std::uint32_t kWithinHalf[16] = {0, 0, 0, 0, 3, 3, 3, 3, 8, 8, 8, 8, 11, 11, 11, 11};
  VecU32 within_half_;
  VecU32 last_of_half_;
  VecU32 last_;
#else
  HWY_INLINE RunningSum() {}  // NOLINT(modernize-use-equals-default): the compiler's own would not be for this target
  HWY_INLINE VecU32 Of(VecU32 v) const { return RunningSums(v); }
  HWY_INLINE VecU32 Last(VecU32 sums) const {
#if HWY_MAX_BYTES >= 32
    return hn::TableLookupLanes(sums, hn::IndicesFromVec(kU32, hn::Set(kU32, kLanesU32 - 1)));
#else
    return hn::Broadcast<kLanesU32 - 1>(sums);
#endif
  }
#endif
};
