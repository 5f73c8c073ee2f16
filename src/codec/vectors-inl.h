// What the kernels of the sparse modes share: vectors of units, classes, rates and times. Included inside each target's
// namespace, after simd_common-inl.h; no include guard on purpose.

// Units are loaded as bytes: they may lie at any address.
template <typename Unit>
HWY_INLINE hn::Vec<hn::ScalableTag<Unit>> LoadUnits(const std::uint8_t* from) {
  return hn::BitCast(hn::ScalableTag<Unit>(), hn::LoadU(kBytes, from));
}

// A bit for each of 64 units: set where old and new differ.
template <typename Unit>
HWY_INLINE std::uint64_t ChangedMask(const std::uint8_t* old_units, const std::uint8_t* new_units) {
  const hn::ScalableTag<Unit> units;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<Unit>());
  const auto differ = [&](std::size_t i) HWY_ATTR {
    return hn::Ne(LoadUnits<Unit>(old_units + i * sizeof(Unit)), LoadUnits<Unit>(new_units + i * sizeof(Unit)));
  };
#if HWY_TARGET == HWY_AVX3
  // Two masks of the most common size become one where they are.
  if constexpr (sizeof(Unit) == 2) return _mm512_kunpackd(differ(kLanes).raw, differ(0).raw);
#endif
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < 64; i += kLanes) mask |= MaskBits(units, differ(i)) << i;
  return mask;
}

using Bytes = hn::Vec<hn::ScalableTag<std::uint8_t>>;

// The class fields of the next Lanes(kBytes) units, one a byte.
template <typename Unit>
HWY_INLINE Bytes Fields(const std::uint8_t* from, int shift, std::uint8_t mask) {
  const std::size_t bytes = hn::Lanes(kBytes);
  const auto field = [&](std::size_t k) {
    const hn::ScalableTag<Unit> units;
    return hn::BitCast(kBytes, hn::And(hn::ShiftRightSame(LoadUnits<Unit>(from + k * bytes), shift),
                                       hn::Set(units, static_cast<Unit>(mask))));
  };
  if constexpr (sizeof(Unit) == 1) {
    return field(0);
  } else {
    // The field is the lowest byte of its unit: halve the units until that byte is all that is left.
    const auto narrow = [&]<typename Half>(Bytes high, Bytes low) {
      const hn::ScalableTag<Half> halves;
      return hn::BitCast(kBytes, hn::ConcatEven(halves, hn::BitCast(halves, high), hn::BitCast(halves, low)));
    };
    const auto from16 = [&](Bytes high, Bytes low) { return narrow.template operator()<std::uint8_t>(high, low); };
    if constexpr (sizeof(Unit) == 2) {
      return from16(field(1), field(0));
    } else {
      const auto from32 = [&](Bytes high, Bytes low) { return narrow.template operator()<std::uint16_t>(high, low); };
      if constexpr (sizeof(Unit) == 4) {
        return from16(from32(field(3), field(2)), from32(field(1), field(0)));
      } else {
        const auto from64 = [&](Bytes high, Bytes low) { return narrow.template operator()<std::uint32_t>(high, low); };
        return from16(from32(from64(field(7), field(6)), from64(field(5), field(4))),
                      from32(from64(field(3), field(2)), from64(field(1), field(0))));
      }
    }
  }
}

using Longs = hn::Vec<hn::ScalableTag<std::uint64_t>>;
constexpr std::size_t kLongLanes = hn::MaxLanes(hn::ScalableTag<std::uint64_t>());
constexpr std::size_t kWordLanes = hn::MaxLanes(hn::ScalableTag<std::uint32_t>());
static_assert(kLanes % kWordLanes == 0 && kWordLanes >= 4);

// table[index mod 16] of every lane.
HWY_INLINE Words LookUpSixteen(const std::uint32_t* table, Words index) {
#if HWY_TARGET == HWY_AVX3
  return Words{_mm512_permutexvar_epi32(index.raw, hn::LoadU(kWords, table).raw)};
#elif HWY_MAX_BYTES >= 32
  const auto within = hn::IndicesFromVec(kWords, hn::And(index, hn::Set(kWords, 7)));
  const auto low = hn::TableLookupLanes(hn::LoadU(kWords, table), within);
  const auto high = hn::TableLookupLanes(hn::LoadU(kWords, table + 8), within);
  return hn::IfThenElse(hn::Ne(hn::And(index, hn::Set(kWords, 8)), hn::Zero(kWords)), high, low);
#else
  HWY_ALIGN std::uint32_t lanes[kWordLanes];
  hn::Store(index, kWords, lanes);
  for (std::uint32_t& lane : lanes) lane = table[lane & 15];
  return hn::Load(kWords, lanes);
#endif
}

HWY_INLINE Words LookUpRates(const ExpandedTables& tables, Words classes) {
  return LookUpSixteen(tables.rates.data(), classes);
}

// Even lanes and odd lanes as 64-bit numbers, and back.
HWY_INLINE auto OddWords(Words v) { return hn::BitCast(kWords, hn::ShiftRight<32>(hn::BitCast(kLongs, v))); }

// (a * b) >> bits, where the result fits 32 bits.
template <int kBits>
HWY_INLINE Words MultiplyShift(Words a, Words b) {
  const auto even = hn::ShiftRight<kBits>(hn::MulEven(a, b));
  const auto odd = hn::ShiftRight<kBits>(hn::MulEven(OddWords(a), OddWords(b)));
  return hn::OddEven(hn::BitCast(kWords, hn::ShiftLeft<32>(odd)), hn::BitCast(kWords, even));
}

// table[index] of every lane, for a table of eight numbers, given twice.
HWY_INLINE Words LookUpEight(const std::array<std::uint32_t, 16>& table, Words index) {
#if HWY_MAX_BYTES >= 32
  return hn::TableLookupLanes(hn::Load(kWords, table.data()), hn::IndicesFromVec(kWords, index));
#else
  HWY_ALIGN std::uint32_t lanes[kWordLanes];
  hn::Store(index, kWords, lanes);
  for (std::uint32_t& lane : lanes) lane = table[lane];
  return hn::Load(kWords, lanes);
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
    tables.drop[k] = waiting_internal::kPieces.drop[k % 8];
    tables.inverse[k] = waiting_internal::kPieces.inverse[k % 8];
  }
  return tables;
}
constexpr LaneTables kLaneTables = MakeLaneTables();

// Waiting() of every lane.
HWY_INLINE Words WaitingOf(Words t) {
  using waiting_internal::kPieceBits;
  const auto piece = hn::And(hn::ShiftRight<kPieceBits>(t), hn::Set(kWords, 7));
  const auto within = hn::And(t, hn::Set(kWords, waiting_internal::kPieceMask));
  const auto fall = MultiplyShift<kPieceBits>(LookUpEight(kLaneTables.drop, piece), within);
  return (LookUpEight(kLaneTables.knot, piece) - fall) >> hn::ShiftRight<kOctaveBits>(t);
}
