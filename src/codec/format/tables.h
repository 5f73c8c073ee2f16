// Tables: what encoder and decoder agree on about chances before the first tile (spec/FORMAT.md, "Tables").
//
// A TableSet says how a unit of the base falls into one of 16 classes (ClassRule), how likely each class is to change
// (a rate code each) and which magnitudes the steps of each class have (a weight code each). Sets are small, are shared
// by many tensors, and are rebuilt from bytes with integers only. A tensor scales the shared rates by one number.
//
// ExpandedTables is the same in the form the coders use. Both are immutable after construction and may be shared by
// threads.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "codec/format/order.h"
#include "codec/format/rans.h"

namespace weightwire {

inline constexpr int kClassCount = 16;
// lasts[] is searched by whole vectors of this many.
inline constexpr std::size_t kSymbolStep = 16;

// Codes are logarithmic, eight steps a doubling: RateOf(0) = 1 … RateOf(kMaxRateCode) < 2^24.
inline constexpr int kMaxRateCode = 191;
constexpr std::uint32_t RateOf(int code) {
  constexpr std::array<std::uint32_t, 8> kMantissa = {128, 140, 152, 166, 181, 197, 215, 235};  // round(128 * 2^(j/8))
  return (kMantissa[static_cast<std::size_t>(code & 7)] << (code >> 3)) >> 7;
}

// class = min(15, max(0, ((unit >> shift) & (2^bits - 1)) - lowest)): for floats the exponent, within a window.
struct ClassRule {
  std::uint8_t shift = 0;
  std::uint8_t bits = 0;  // 0..8; 0 puts everything into class 0
  std::uint8_t lowest = 0;
  Order order = Order::kInteger;

  [[nodiscard]] std::uint8_t FieldMask() const { return static_cast<std::uint8_t>((1u << bits) - 1); }
  [[nodiscard]] std::uint8_t ClassOfField(std::uint32_t field) const {
    const std::uint32_t above = field > lowest ? field - lowest : 0;
    return static_cast<std::uint8_t>(above < kClassCount ? above : kClassCount - 1);
  }
  // Whether units of that width have the field at all.
  [[nodiscard]] bool Fits(int unit_bits) const { return bits <= 8 && shift + bits <= unit_bits && shift < unit_bits; }
  friend bool operator==(const ClassRule&, const ClassRule&) = default;
};

// The symbols of one class: magnitude buckets, or in a dense set 0 for "unchanged" and bucket + 1.
struct SymbolWeights {
  std::vector<std::uint8_t> codes;  // 0: never; otherwise the weight RateOf(code - 1)
  bool tail = false;                // symbols after the last code have the smallest chance instead of none

  friend bool operator==(const SymbolWeights&, const SymbolWeights&) = default;
};

struct TableSet {
  int unit_bits = 16;    // from the tensors that use the set; not written
  bool dense = false;    // no positions: every unit has a symbol
  bool uniform = false;  // one rate for all classes: positions can be found without looking at the base
  ClassRule rule;
  std::array<std::uint8_t, kClassCount> rate_codes{};  // unused when dense
  std::array<SymbolWeights, kClassCount> symbols;

  [[nodiscard]] int AlphabetSize() const { return BucketCount(unit_bits) + (dense ? 1 : 0); }

  void Write(ByteWriter& out) const;
  static Result<TableSet> Read(ByteReader& in);
  // Whether the set can be used for units of unit_bits.
  [[nodiscard]] Status CheckFits() const;

  friend bool operator==(const TableSet&, const TableSet&) = default;
};

// The chance of each symbol of a class, in units of 2^-16. Sums to 2^16 unless no symbol is possible at all.
std::vector<std::uint32_t> NormalizedWidths(const SymbolWeights& weights, int alphabet_size);

// How a symbol is coded. An event of width 0 is certain; `possible` tells it from one that cannot be coded.
struct SymbolEvent {
  RansEvent event;
  bool possible = false;
};

// One possible symbol as the decoder meets it.
struct SymbolSlot {
  RansEvent event;
  std::uint32_t symbol;
  std::uint32_t extra_bits;       // of its bucket
  std::uint64_t least_magnitude;  // of its bucket; 0 for the symbol "unchanged" of a dense set
};

// The same for units of up to 32 bits, in the form that vectors take in whole.
struct LaneSlot {
  std::uint32_t start;
  std::uint32_t width;
  std::uint32_t least_magnitude;
  std::uint32_t extra_bits;
};

// Magnitude buckets that hold one magnitude each.
inline constexpr std::size_t kPlainSymbols = 4;
// Not a symbol's: only a certain one has a width whose upper half is 0, and it starts at 0.
inline constexpr std::uint32_t kNoSymbol = 1u << 16;

struct ExpandedTables {
  ClassRule rule;
  bool uniform = false;
  std::array<std::uint32_t, kClassCount> rates{};
  std::array<std::uint8_t, 256> class_of_field{};
  std::array<std::uint32_t, 256> rate_of_field{};
  // The three bytes of each rate, lowest first: vectors look them up one by one.
  std::array<std::array<std::uint8_t, kClassCount>, 3> rate_bytes{};

  // For the encoder: the symbols of class c begin at c * stride.
  std::size_t stride = 0;
  std::vector<SymbolEvent> events;
  // Of the symbols without extra bits once more, by symbol, then class, in a form that vectors look up: the start's
  // upper half, then the width's, or kNoSymbol.
  std::array<std::array<std::uint32_t, kClassCount>, kPlainSymbols> plain_symbols{};
  // For the decoder: the possible symbols of class c begin at c * stride, in the order of their intervals. The event at
  // a position is the first whose lasts[] is not below it; after the possible ones, lasts[] is 2^32 - 1 throughout.
  std::vector<std::uint32_t> lasts;
  std::vector<SymbolSlot> slots;
  std::vector<LaneSlot> lane_slots;
  std::uint32_t usable_classes = 0;  // a bit for each class that has symbols at all

  // REQUIRES: set.CheckFits().
  ExpandedTables(const TableSet& set, int scale);
};

}  // namespace weightwire
