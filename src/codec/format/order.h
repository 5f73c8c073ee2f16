// Steps: how a new value is told from an old one (spec/FORMAT.md, "Values").
//
// Each pattern of a unit has an ordinal. Neighbouring numbers have neighbouring ordinals: for floats the sign and
// magnitude become one signed number (-0 is -1 and differs from +0), for integers the pattern is its own ordinal.
// Both are bijections, so a step modulo 2^width loses nothing: NaN payloads and signed zeros survive.
//
// A step is never 0. It has a direction, and a magnitude that falls into a bucket, two buckets an octave; the rest of
// the magnitude is raw bits.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace weightwire {

enum class Order : std::uint8_t { kInteger = 0, kSignMagnitude = 1 };

// The ordinal of a pattern, as an unsigned residue modulo 2^width.
template <typename Unit>
constexpr Unit ToOrdinal(Unit bits, Order order) {
  using Signed = std::make_signed_t<Unit>;
  constexpr int kTop = std::numeric_limits<Unit>::digits - 1;
  // For a negative pattern, -1 - magnitude is the complement of the magnitude.
  const Unit negative = order == Order::kSignMagnitude ? static_cast<Unit>(static_cast<Signed>(bits) >> kTop) : Unit{0};
  return static_cast<Unit>(bits ^ static_cast<Unit>(negative & static_cast<Unit>(~(Unit{1} << kTop))));
}

template <typename Unit>
constexpr Unit FromOrdinal(Unit ordinal, Order order) {
  return ToOrdinal(ordinal, order);  // an involution: the top bit says which half we are in, and does not change
}

struct Step {
  bool down;                // the new number is smaller
  std::uint64_t magnitude;  // 1 .. 2^(width-1)
};

template <typename Unit>
constexpr Step StepBetween(Unit from, Unit to, Order order) {
  const Unit up = static_cast<Unit>(ToOrdinal(to, order) - ToOrdinal(from, order));
  const bool down = (up >> (std::numeric_limits<Unit>::digits - 1)) != 0;
  return {down, down ? static_cast<Unit>(Unit{0} - up) : up};
}

template <typename Unit>
constexpr Unit Stepped(Unit from, Step step, Order order) {
  const Unit magnitude = static_cast<Unit>(step.magnitude);
  const Unit ordinal = ToOrdinal(from, order);
  return FromOrdinal(static_cast<Unit>(step.down ? ordinal - magnitude : ordinal + magnitude), order);
}

struct Bucket {
  std::uint8_t symbol;
  std::uint8_t extra_bits;
  std::uint64_t extra;
};

// Buckets of magnitude - 1: 0, 1, 2, 3, then two an octave.
constexpr Bucket BucketOf(std::uint64_t magnitude) {
  const std::uint64_t n = magnitude - 1;
  if (n < 4) return {static_cast<std::uint8_t>(n), 0, 0};
  const int log = 63 - std::countl_zero(n);
  const int extra_bits = log - 1;
  const std::uint64_t half = (n >> extra_bits) & 1;
  return {static_cast<std::uint8_t>(2 * log + static_cast<int>(half)), static_cast<std::uint8_t>(extra_bits),
          n & ((std::uint64_t{1} << extra_bits) - 1)};
}

constexpr int BucketExtraBits(int symbol) { return symbol < 4 ? 0 : symbol / 2 - 1; }

constexpr std::uint64_t MagnitudeOf(int symbol, std::uint64_t extra) {
  if (symbol < 4) return static_cast<std::uint64_t>(symbol) + 1;
  return ((std::uint64_t{2} + static_cast<std::uint64_t>(symbol & 1)) << BucketExtraBits(symbol)) + extra + 1;
}

// The number of buckets a unit of `width_bits` can need: its largest magnitude is 2^(width-1).
constexpr int BucketCount(int width_bits) { return 2 * (width_bits - 2) + 2; }

}  // namespace weightwire
