// Waiting(t): the chance, in units of 2^-31, that nothing has changed after a waiting time t.
//
// Positions are coded as waiting times (spec/FORMAT.md, "Positions"). Every unit has a rate, the time it takes to pass
// it; time is counted in 2^-20 octaves, and Waiting() halves with every octave. It is piecewise linear with eight
// segments an octave, so that it is exact integer arithmetic on every machine, and its inverse is one multiplication.
//
// Invariants (waiting_test.cc checks all of them exhaustively):
//   1. Waiting(0) == 2^31.
//   2. Waiting(t) > Waiting(t + 1) for every t < kHorizon: each unit of rate >= 1 gets a non-empty interval.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace weightwire {

inline constexpr int kOctaveBits = 20;
// The farthest a single coding step looks ahead. Beyond it the slope would fall under one unit per time unit.
inline constexpr std::uint32_t kHorizon = 10u << kOctaveBits;

namespace waiting_internal {

// round(2^(31 - j/8)) for j = 0..8.
inline constexpr std::array<std::uint32_t, 9> kKnots = {2147483648, 1969251188, 1805811301, 1655936265, 1518500250,
                                                        1392470869, 1276901417, 1170923762, 1073741824};
inline constexpr int kSegmentBits = kOctaveBits - 3;
inline constexpr std::uint32_t kSegmentMask = (1u << kSegmentBits) - 1;

struct Segments {
  std::array<std::uint32_t, 8> drop;           // how far segment j falls
  std::array<std::uint32_t, 8> inverse;        // 2^(kSegmentBits + 32) / drop, for the guess only
  std::array<std::uint8_t, 32> first_of_cell;  // the segment at the upper end of each 32nd of an octave
};

constexpr Segments MakeSegments() {
  Segments segments{};
  for (std::size_t j = 0; j < 8; ++j) {
    segments.drop[j] = kKnots[j] - kKnots[j + 1];
    segments.inverse[j] = static_cast<std::uint32_t>((std::uint64_t{1} << (kSegmentBits + 32)) / segments.drop[j]);
  }
  for (std::uint32_t cell = 0; cell < 32; ++cell) {
    const std::uint32_t upper = (1u << 30) + ((cell + 1) << 25) - 1;
    std::uint8_t segment = 0;
    while (upper < kKnots[segment + 1]) ++segment;
    segments.first_of_cell[cell] = segment;
  }
  return segments;
}
inline constexpr Segments kSegments = MakeSegments();

}  // namespace waiting_internal

// REQUIRES: t <= kHorizon.
constexpr std::uint32_t Waiting(std::uint32_t t) {
  using namespace waiting_internal;
  const std::uint32_t segment = (t >> kSegmentBits) & 7;
  const auto fall =
      static_cast<std::uint32_t>((std::uint64_t{kSegments.drop[segment]} * (t & kSegmentMask)) >> kSegmentBits);
  return (kKnots[segment] - fall) >> (t >> kOctaveBits);
}

// A time close to the largest t with Waiting(t) > v (within kGuessError). Only a guess to start a search from: whoever
// calls it compares exactly with Waiting() afterwards.
// REQUIRES: Waiting(kHorizon) <= v < 2^31.
inline constexpr std::uint32_t kGuessError = 2;
constexpr std::uint32_t GuessTime(std::uint32_t v) {
  using namespace waiting_internal;
  const int octave = std::countl_zero(v) - 1;
  const std::uint32_t scaled = v << octave;
  std::uint32_t segment = kSegments.first_of_cell[(scaled >> 25) & 31];
  segment += scaled < kKnots[segment + 1];  // a cell holds at most one knot
  const std::uint64_t fallen = kKnots[segment] - scaled;
  const auto within = static_cast<std::uint32_t>((fallen * kSegments.inverse[segment]) >> 32);
  return (static_cast<std::uint32_t>(octave) << kOctaveBits) + (segment << kSegmentBits) + within;
}

}  // namespace weightwire
