#include "codec/format/tables.h"

#include <algorithm>
#include <numeric>

namespace weightwire {

namespace {

constexpr std::uint32_t kSymbolTotal = 1u << 16;
constexpr std::uint8_t kFlagSignMagnitude = 1;
constexpr std::uint8_t kFlagDense = 2;
constexpr std::uint8_t kFlagUniform = 4;
constexpr std::uint8_t kTailBit = 0x80;
constexpr std::size_t kMaxCodes = 127;

Error DamagedTables(const char* what) {
  return {ErrorCode::kCorrupt, std::string("the delta's tables are damaged: ") + what};
}

}  // namespace

void TableSet::Write(ByteWriter& out) const {
  std::uint8_t flags = rule.order == Order::kSignMagnitude ? kFlagSignMagnitude : 0;
  if (dense) flags |= kFlagDense;
  if (uniform) flags |= kFlagUniform;
  out.U8(flags);
  out.U8(rule.shift);
  out.U8(rule.bits);
  out.U8(rule.lowest);
  if (!dense) {
    const std::size_t count = uniform ? 1 : kClassCount;
    for (std::size_t c = 0; c < count; ++c) out.U8(rate_codes[c]);
  }
  for (const SymbolWeights& weights : symbols) {
    WW_CHECK(weights.codes.size() <= kMaxCodes);
    out.U8(static_cast<std::uint8_t>(weights.codes.size() | (weights.tail ? kTailBit : 0)));
    // A single code needs no weight: whatever the tail leaves is its own.
    if (weights.codes.size() > 1) {
      for (const std::uint8_t code : weights.codes) out.U8(code);
    }
  }
}

Result<TableSet> TableSet::Read(ByteReader& in) {
  TableSet set;
  WW_TRY(const std::uint8_t flags, in.U8());
  if ((flags & ~(kFlagSignMagnitude | kFlagDense | kFlagUniform)) != 0) return DamagedTables("unknown flags");
  set.dense = (flags & kFlagDense) != 0;
  set.uniform = (flags & kFlagUniform) != 0;
  if (set.dense && set.uniform) return DamagedTables("a dense set has no rates");
  set.rule.order = (flags & kFlagSignMagnitude) != 0 ? Order::kSignMagnitude : Order::kInteger;
  WW_TRY(set.rule.shift, in.U8());
  WW_TRY(set.rule.bits, in.U8());
  WW_TRY(set.rule.lowest, in.U8());
  if (set.rule.bits > 8 || set.rule.shift > 63) return DamagedTables("impossible class rule");
  if (!set.dense) {
    const std::size_t count = set.uniform ? 1 : kClassCount;
    for (std::size_t c = 0; c < count; ++c) {
      WW_TRY(set.rate_codes[c], in.U8());
      if (set.rate_codes[c] > kMaxRateCode) return DamagedTables("impossible rate");
    }
    if (set.uniform) set.rate_codes.fill(set.rate_codes[0]);
  }
  for (SymbolWeights& weights : set.symbols) {
    WW_TRY(const std::uint8_t header, in.U8());
    weights.tail = (header & kTailBit) != 0;
    weights.codes.assign(header & kMaxCodes, 1);
    if (weights.codes.size() > 1) {
      std::uint32_t any = 0;
      for (std::uint8_t& code : weights.codes) {
        WW_TRY(code, in.U8());
        if (code > kMaxRateCode + 1) return DamagedTables("impossible weight");
        any |= code;
      }
      if (any == 0) return DamagedTables("a class without weights");
    }
  }
  return set;
}

Status TableSet::CheckFits() const {
  if (!rule.Fits(unit_bits)) return DamagedTables("a class rule does not fit its units");
  for (const SymbolWeights& weights : symbols) {
    if (weights.codes.size() > static_cast<std::size_t>(AlphabetSize())) return DamagedTables("too many symbols");
  }
  return Ok();
}

std::vector<std::uint32_t> NormalizedWidths(const SymbolWeights& weights, int alphabet_size) {
  const auto alphabet = static_cast<std::size_t>(alphabet_size);
  WW_CHECK(weights.codes.size() <= alphabet);
  std::vector<std::uint32_t> widths(alphabet, 0);
  const std::size_t tail = weights.tail ? alphabet - weights.codes.size() : 0;
  if (weights.codes.empty() && tail == 0) return widths;
  std::vector<std::uint64_t> weight(weights.codes.size());
  for (std::size_t s = 0; s < weight.size(); ++s) weight[s] = weights.codes[s] == 0 ? 0 : RateOf(weights.codes[s] - 1);
  const std::uint64_t sum = std::accumulate(weight.begin(), weight.end(), std::uint64_t{0});
  const std::uint32_t budget = kSymbolTotal - static_cast<std::uint32_t>(tail);
  auto used = static_cast<std::uint32_t>(tail);
  for (std::size_t s = 0; s < alphabet; ++s) {
    if (s >= weight.size()) {
      widths[s] = tail != 0 ? 1 : 0;
    } else if (weight[s] != 0) {
      widths[s] = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(weight[s] * budget / sum));
      used += widths[s];
    }
  }
  // What rounding left over, or took too much, is the most likely symbol's.
  std::uint32_t& largest = *std::max_element(widths.begin(), widths.end());
  largest = largest + kSymbolTotal - used;
  return widths;
}

ExpandedTables::ExpandedTables(const TableSet& set, int scale) : rule(set.rule), uniform(set.uniform) {
  WW_CHECK(rule.Fits(set.unit_bits));
  const auto alphabet = static_cast<std::size_t>(set.AlphabetSize());
  // At least one past the alphabet, so that a search always ends.
  stride = (alphabet / kSymbolStep + 1) * kSymbolStep;
  events.resize(kClassCount * stride);
  lasts.assign(kClassCount * stride, 0xffffffff);
  slots.resize(kClassCount * stride);
  lane_slots.resize(kClassCount * stride);
  for (std::size_t c = 0; c < kClassCount; ++c) {
    rates[c] = set.dense ? 0 : RateOf(std::clamp(set.rate_codes[c] + scale, 0, kMaxRateCode));
    const std::vector<std::uint32_t> widths = NormalizedWidths(set.symbols[c], set.AlphabetSize());
    std::uint32_t start = 0;
    std::size_t slot = c * stride;
    for (std::size_t symbol = 0; symbol < alphabet; ++symbol) {
      if (widths[symbol] == 0) continue;
      const RansEvent event{start << 16, widths[symbol] << 16};  // the full interval, 2^32, becomes width 0
      start += widths[symbol];
      events[c * stride + symbol] = {event, true};
      lasts[slot] = (start << 16) - 1;
      const int bucket = static_cast<int>(symbol) - (set.dense ? 1 : 0);
      slots[slot] = {event, static_cast<std::uint32_t>(symbol), 0, 0};
      if (bucket >= 0) {
        slots[slot].extra_bits = static_cast<std::uint32_t>(BucketExtraBits(bucket));
        slots[slot].least_magnitude = MagnitudeOf(bucket, 0);
      }
      lane_slots[slot] = {event.start, event.width, static_cast<std::uint32_t>(slots[slot].least_magnitude),
                          slots[slot].extra_bits};
      ++slot;
    }
    if (start != 0) usable_classes |= 1u << c;
    for (std::size_t symbol = 0; symbol < std::min(alphabet, kPlainSymbols); ++symbol) {
      const auto& [event, possible] = events[c * stride + symbol];
      plain_symbols[symbol][c] = possible ? event.start | (event.width >> 16) : kNoSymbol;
    }
    for (std::size_t byte = 0; byte < rate_bytes.size(); ++byte) {
      rate_bytes[byte][c] = static_cast<std::uint8_t>(rates[c] >> (8 * byte));
    }
  }
  for (std::uint32_t field = 0; field < 256; ++field) {
    class_of_field[field] = rule.ClassOfField(field);
    rate_of_field[field] = rates[class_of_field[field]];
  }
}

}  // namespace weightwire
