// A guess at the time at which a lane's next change comes, for decode_sparse_lanes-inl.h. Included by kernels_simd.cc
// inside each target's namespace; no include guard on purpose.

// What GuessTimeOf looks up. An octave of the waiting is cut into 16 cells, each with at most one knot in it.
struct GuessTables {
  HWY_ALIGN std::array<std::uint32_t, 16> first_segment;  // at the upper end of the cell
  HWY_ALIGN std::array<std::uint32_t, 16> knot;           // in the cell, or 0
  HWY_ALIGN std::array<float, 16> inverse;                // time over drop, of each segment
};
constexpr GuessTables MakeGuessTables() {
  using namespace waiting_internal;
  GuessTables tables{};
  for (std::uint32_t cell = 0; cell < 16; ++cell) {
    const std::uint32_t lower = (1u << 30) + (cell << 26);
    const std::uint32_t upper = lower + (1u << 26) - 1;
    std::uint32_t segment = 0;
    while (upper < kKnots[segment + 1]) ++segment;
    tables.first_segment[cell] = segment;
    tables.knot[cell] = lower < kKnots[segment + 1] ? kKnots[segment + 1] : 0;
    tables.inverse[cell] = static_cast<float>(1u << kSegmentBits) / static_cast<float>(kSegments.drop[cell % 8]);
  }
  return tables;
}
constexpr GuessTables kGuessTables = MakeGuessTables();
// Floats round, so this guess may be off by one more than GuessTime().
constexpr std::uint32_t kLaneGuessError = kGuessError + 1;

// About GuessTime() of every lane.
HWY_INLINE VecU32 GuessTimeOf(VecU32 v) {
  // The position of the highest bit is the exponent of a float; the bit below it is cleared so that nothing rounds up.
  const hn::RebindToSigned<decltype(kU32)> ints;
  const hn::RebindToFloat<decltype(kU32)> floats;
  const auto high_bit = hn::BitCast(ints, hn::AndNot(hn::ShiftRight<1>(v), v));
  const auto exponent = hn::ShiftRight<23>(hn::BitCast(kU32, hn::ConvertTo(floats, high_bit)));
  const auto octave = hn::Sub(hn::Set(kU32, 127 + 30), exponent);
  const auto scaled = v << octave;
  const auto cell = hn::ShiftRight<26>(scaled);
  const auto next_segment =
      hn::BitCast(ints, scaled) < hn::BitCast(ints, LookUpSixteen(kGuessTables.knot.data(), cell));
  const auto segment = hn::Add(LookUpSixteen(kGuessTables.first_segment.data(), cell),
                               hn::IfThenElseZero(hn::RebindMask(kU32, next_segment), hn::Set(kU32, 1)));
  const auto fallen = hn::ConvertTo(floats, hn::BitCast(ints, hn::Sub(LookUpEight(kLaneTables.knot, segment), scaled)));
  const auto inverse =
      hn::BitCast(floats, LookUpSixteen(reinterpret_cast<const std::uint32_t*>(kGuessTables.inverse.data()), segment));
  const auto within = hn::BitCast(kU32, hn::ConvertTo(ints, hn::Mul(fallen, inverse)));
  return hn::Add(within,
                 hn::Add(hn::ShiftLeft<kOctaveBits>(octave), hn::ShiftLeft<waiting_internal::kSegmentBits>(segment)));
}
