#include "codec/encode/sample_tables.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/bytes.h"
#include "codec/format/format.h"
#include "codec/format/waiting.h"

namespace weightwire {

namespace {

// log2(value) in units of 2^-20. REQUIRES: value >= 1.
constexpr std::uint64_t Log2(std::uint64_t value) {
  const int whole = 63 - std::countl_zero(value);
  // The mantissa in [1, 2) with 31 bits after the point; squaring doubles the logarithm, bit by bit.
  std::uint64_t mantissa = whole <= 31 ? value << (31 - whole) : value >> (whole - 31);
  std::uint64_t log = static_cast<std::uint64_t>(whole) << kCostBits;
  for (int bit = kCostBits - 1; bit >= 0; --bit) {
    mantissa = (mantissa * mantissa) >> 31;
    if (mantissa >= (std::uint64_t{1} << 32)) {
      mantissa >>= 1;
      log |= std::uint64_t{1} << bit;
    }
  }
  return log;
}

// For each rate code, what it costs that a unit does not change, which is the rate itself, and that it does.
struct RateCosts {
  std::array<std::uint64_t, kMaxRateCode + 1> passed{};
  std::array<std::uint64_t, kMaxRateCode + 1> change{};
};
constexpr RateCosts MakeRateCosts() {
  RateCosts costs;
  for (int code = 0; code <= kMaxRateCode; ++code) {
    const auto at = static_cast<std::size_t>(code);
    costs.passed[at] = RateOf(code);
    const std::uint32_t change = (1u << 31) - Waiting(std::min(RateOf(code), kHorizon));
    costs.change[at] = (std::uint64_t{31} << kCostBits) - Log2(change);
  }
  return costs;
}
constexpr RateCosts kRateCosts = MakeRateCosts();
// No unit costs more than 2^25, changed or not: so costs of fewer units than this fit 64 bits, which is faster.
constexpr std::uint64_t kFewUnits = std::uint64_t{1} << 38;
static_assert(RateOf(kMaxRateCode) < (1u << 25) && (std::uint64_t{31} << kCostBits) < (1u << 25));

// The window of classes begins where less than one change in 128 lies below: above, rates halve with every class.
std::uint8_t LowestField(const Sample& sample) {
  std::uint64_t below = 0;
  for (const FieldCounts& counts : sample.fields) {
    below += counts.changed;
    if (below * 128 > sample.changed) return counts.field;
  }
  return 0;
}

template <typename Sum = Cost>
Sum PositionCost(std::uint64_t units, std::uint64_t changed, int code) {
  const auto at = static_cast<std::size_t>(code);
  return Sum{units - changed} * kRateCosts.passed[at] + Sum{changed} * kRateCosts.change[at];
}

// Where cost_of(number) is least for numbers first .. last; of equal ones the first. What falls towards it from both
// sides is found by a look at every eighth. A sum of costs may have a second valley, where rates of some classes are at
// their limit; then the other one may be found, which costs little more.
template <typename CostOf>
int Cheapest(int first, int last, const CostOf& cost_of) {
  constexpr int kStride = 8;
  const auto least = [&](int begin, int end, int stride) {
    int best = begin;
    auto best_cost = cost_of(begin);
    for (int number = begin + stride; number <= end; number += stride) {
      const auto cost = cost_of(number);
      if (cost < best_cost) {
        best_cost = cost;
        best = number;
      }
    }
    return best;
  };
  const int about = least(first, last, kStride);
  return least(std::max(first, about - kStride + 1), std::min(last, about + kStride - 1), 1);
}

// Counts of a part are counts of the whole with half an event more on either side: nothing is impossible.
int BestRateCode(std::uint64_t units, std::uint64_t changed, bool complete) {
  if (!complete) {
    units = 2 * units + 2;
    changed = 2 * changed + 1;
  }
  const auto best = [&]<typename Sum>(Sum) {
    return Cheapest(0, kMaxRateCode, [&](int code) { return PositionCost<Sum>(units, changed, code); });
  };
  return units < kFewUnits ? best(std::uint64_t{}) : best(Cost{});
}

void ChooseRates(const Classes& classes, bool complete, TableSet& set) {
  constexpr int kHalf = 8;  // codes for half the rate
  int code = -1;
  for (int c = 0; c < kClassCount; ++c) {
    if (classes.units[c] != 0) {
      const bool first = code < 0;
      code = BestRateCode(classes.units[c], classes.changed[c], complete);
      for (int lower = 0; first && lower < c; ++lower) set.rate_codes[lower] = static_cast<std::uint8_t>(code);
    } else if (code >= 0) {
      code = std::max(0, code - kHalf);
    }
    set.rate_codes[c] = static_cast<std::uint8_t>(std::max(0, code));
  }
}

void ChooseUniformRate(const Classes& classes, bool complete, TableSet& set) {
  const std::uint64_t units = std::accumulate(classes.units.begin(), classes.units.end(), std::uint64_t{0});
  const std::uint64_t changed = std::accumulate(classes.changed.begin(), classes.changed.end(), std::uint64_t{0});
  set.rate_codes.fill(static_cast<std::uint8_t>(BestRateCode(units, changed, complete)));
}

// The nearest weight code, for counts scaled so that the largest has the largest weight.
std::uint8_t WeightCode(std::uint64_t count, std::uint64_t largest) {
  if (count == 0) return 0;
  const auto weight = static_cast<std::uint64_t>((static_cast<unsigned __int128>(count) << 23) / largest);
  // The last code whose weight is not above it, or the first.
  const auto& weights = kRateCosts.passed;
  const auto above = std::upper_bound(weights.begin() + 1, weights.end(), weight);
  int code = static_cast<int>(above - weights.begin()) - 1;
  if (code < kMaxRateCode && RateOf(code + 1) - weight < weight - RateOf(code)) ++code;
  return static_cast<std::uint8_t>(code + 1);
}

// Up to the last symbol that occurs.
std::size_t CodeCount(std::span<const std::uint64_t> counts) {
  std::size_t size = counts.size();
  while (size > 0 && counts[size - 1] == 0) --size;
  return size;
}

SymbolWeights WeightsOf(std::span<const std::uint64_t> counts, bool complete) {
  SymbolWeights weights;
  weights.tail = !complete;
  const std::size_t size = CodeCount(counts);
  if (size == 0) {
    if (!complete) weights.codes = {1};
    return weights;
  }
  const std::uint64_t largest = *std::max_element(counts.begin(), counts.end());
  weights.codes.reserve(size);
  for (std::size_t s = 0; s < size; ++s) {
    std::uint8_t code = WeightCode(counts[s], largest);
    if (code == 0 && !complete) code = 1;
    weights.codes.push_back(code);
  }
  return weights;
}

// What each symbol of a class costs.
class SymbolPrices {
 public:
  SymbolPrices(const SymbolWeights& weights, int alphabet, bool dense)
      : widths_(NormalizedWidths(weights, alphabet)), first_bucket_(dense ? 1 : 0) {}

  [[nodiscard]] std::uint64_t Of(std::size_t symbol) const {
    if (widths_[symbol] == 0) return kNever;
    const int bucket = static_cast<int>(symbol) - first_bucket_;
    const std::uint64_t raw_bits = bucket < 0 ? 0 : 1 + static_cast<std::uint64_t>(BucketExtraBits(bucket));
    return ((16 + raw_bits) << kCostBits) - Log2(widths_[symbol]);
  }
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

 private:
  std::vector<std::uint32_t> widths_;
  int first_bucket_;
};

// price_of(class, symbol) is only asked for what occurs.
template <typename PriceOf>
Cost CostOfSymbols(const Classes& classes, const PriceOf& price_of) {
  Cost cost = 0;
  for (std::size_t c = 0; c < kClassCount; ++c) {
    if (!classes.dense && classes.changed[c] == 0) continue;
    const std::span<const std::uint64_t> counts = classes.symbols_of(c);
    for (std::size_t s = 0; s < counts.size(); ++s) {
      if (counts[s] == 0) continue;
      const std::uint64_t price = price_of(c, s);
      if (price == SymbolPrices::kNever) return kImpossible;
      cost += Cost{counts[s]} * price;
    }
  }
  return cost;
}

}  // namespace

Classes InClasses(const Sample& sample, const ClassRule& rule, bool dense) {
  Classes classes;
  classes.dense = dense;
  const std::size_t first_bucket = dense ? 1 : 0;
  classes.alphabet = static_cast<std::size_t>(BucketCount(8 * sample.unit_bytes)) + first_bucket;
  classes.symbols.resize(kClassCount * classes.alphabet);
  for (const FieldCounts& from : sample.fields) {
    const std::size_t c = rule.ClassOfField(from.field);
    classes.units[c] += from.units;
    classes.changed[c] += from.changed;
    std::uint64_t* const symbols = classes.symbols.data() + c * classes.alphabet;
    if (dense) symbols[0] += from.units - from.changed;
    const std::span<const std::uint64_t> buckets = sample.buckets_of(from);
    for (std::size_t b = 0; b < buckets.size(); ++b) symbols[first_bucket + b] += buckets[b];
  }
  return classes;
}

Cost SymbolCost(const Classes& classes, const TableSet& set) {
  std::vector<SymbolPrices> prices;
  prices.reserve(kClassCount);
  for (const SymbolWeights& weights : set.symbols) prices.emplace_back(weights, set.AlphabetSize(), set.dense);
  return CostOfSymbols(classes, [&](std::size_t c, std::size_t s) { return prices[c].Of(s); });
}

std::vector<std::uint64_t> SymbolPricesOf(const TableSet& set) {
  std::vector<std::uint64_t> prices;
  for (const SymbolWeights& weights : set.symbols) {
    const SymbolPrices of_class(weights, set.AlphabetSize(), set.dense);
    for (std::size_t s = 0; s < static_cast<std::size_t>(set.AlphabetSize()); ++s) prices.push_back(of_class.Of(s));
  }
  return prices;
}

Cost SymbolCost(const Classes& classes, std::span<const std::uint64_t> prices) {
  return CostOfSymbols(classes, [&](std::size_t c, std::size_t s) { return prices[c * classes.alphabet + s]; });
}

Cost PositionCost(const Classes& classes, const TableSet& set, int scale) {
  if (set.dense) return 0;
  Cost cost = 0;
  for (std::size_t c = 0; c < kClassCount; ++c) {
    cost += PositionCost(classes.units[c], classes.changed[c], std::clamp(set.rate_codes[c] + scale, 0, kMaxRateCode));
  }
  return cost;
}

Cost OfAll(const Sample& sample, Cost position_cost, Cost symbol_cost) {
  if (symbol_cost == kImpossible) return kImpossible;
  return sample.units_sampled == 0 ? 0 : (position_cost + symbol_cost) * sample.units / sample.units_sampled;
}

int BestScale(const Classes& classes, const TableSet& set) {
  // Units and changes by rate code: classes may have the same one, and many have no units.
  struct Counts {
    std::uint64_t units = 0;
    std::uint64_t changed = 0;
    int code = 0;
  };
  std::array<Counts, kClassCount> by_code;
  std::size_t codes = 0;
  for (std::size_t c = 0; c < kClassCount; ++c) {
    if (classes.units[c] == 0) continue;
    std::size_t at = 0;
    while (at < codes && by_code[at].code != set.rate_codes[c]) ++at;
    if (at == codes) by_code[codes++].code = set.rate_codes[c];
    by_code[at].units += classes.units[c];
    by_code[at].changed += classes.changed[c];
  }
  const auto best = [&]<typename Sum>(Sum) {
    return Cheapest(-kMaxScale, kMaxScale, [&](int scale) {
      Sum cost = 0;
      for (const Counts& counts : std::span(by_code).first(codes)) {
        cost += PositionCost<Sum>(counts.units, counts.changed, std::clamp(counts.code + scale, 0, kMaxRateCode));
      }
      return cost;
    });
  };
  const std::uint64_t units = std::accumulate(classes.units.begin(), classes.units.end(), std::uint64_t{0});
  return units < kFewUnits ? best(std::uint64_t{}) : best(Cost{});
}

ClassRule WithWindow(ClassRule rule, const Sample& sample) {
  if (rule.bits > 4) rule.lowest = LowestField(sample);
  return rule;
}

TableSet SetWithSymbols(const Classes& classes, const ClassRule& rule, const Sample& sample) {
  TableSet set;
  set.unit_bits = 8 * sample.unit_bytes;
  set.dense = classes.dense;
  set.rule = rule;
  for (std::size_t c = 0; c < kClassCount; ++c) set.symbols[c] = WeightsOf(classes.symbols_of(c), sample.complete);
  return set;
}

void SetRates(const Classes& classes, bool complete, TableKind kind, TableSet& set) {
  set.uniform = kind == TableKind::kUniform;
  if (kind == TableKind::kConditioned) ChooseRates(classes, complete, set);
  if (kind == TableKind::kUniform) ChooseUniformRate(classes, complete, set);
}

TableSet BuildSet(const Sample& sample, ClassRule rule, TableKind kind) {
  rule = WithWindow(rule, sample);
  const Classes classes = InClasses(sample, rule, kind == TableKind::kDense);
  TableSet set = SetWithSymbols(classes, rule, sample);
  SetRates(classes, sample.complete, kind, set);
  return set;
}

Cost TableCost(const TableSet& set) {
  std::vector<std::uint8_t> bytes;
  ByteWriter writer(bytes);
  set.Write(writer);
  return Cost{bytes.size()} << (3 + kCostBits);
}

Cost OwnPositionCost(const Classes& classes, bool complete, TableKind kind) {
  const auto at_best = [&](std::uint64_t units, std::uint64_t changed) {
    return PositionCost(units, changed, BestRateCode(units, changed, complete));
  };
  if (kind == TableKind::kDense) return 0;
  if (kind == TableKind::kUniform) {
    return at_best(std::accumulate(classes.units.begin(), classes.units.end(), std::uint64_t{0}),
                   std::accumulate(classes.changed.begin(), classes.changed.end(), std::uint64_t{0}));
  }
  Cost cost = 0;
  for (std::size_t c = 0; c < kClassCount; ++c) {
    if (classes.units[c] != 0) cost += at_best(classes.units[c], classes.changed[c]);
  }
  return cost;
}

Cost OwnSymbolCost(const Classes& classes, bool complete) {
  Cost cost = 0;
  for (std::size_t c = 0; c < kClassCount; ++c) {
    if (classes.dense ? classes.units[c] == 0 : classes.changed[c] == 0) continue;
    const std::span<const std::uint64_t> counts = classes.symbols_of(c);
    if (complete && !classes.dense && CodeCount(counts) == 1) {
      cost += Cost{counts[0]} << kCostBits;  // it is certain, but for its direction
      continue;
    }
    const SymbolPrices prices(WeightsOf(counts, complete), static_cast<int>(classes.alphabet), classes.dense);
    for (std::size_t s = 0; s < counts.size(); ++s) {
      if (counts[s] != 0) cost += Cost{counts[s]} * prices.Of(s);
    }
  }
  return cost;
}

Cost OwnTableCost(const Classes& classes, TableKind kind) {
  // As TableSet::Write has it: flags and rule, rates, and for each class a number and its codes, if there are several.
  std::size_t bytes = 4 + kClassCount;
  if (kind != TableKind::kDense) bytes += kind == TableKind::kUniform ? 1 : kClassCount;
  for (std::size_t c = 0; c < kClassCount; ++c) {
    if (classes.dense ? classes.units[c] == 0 : classes.changed[c] == 0) continue;
    const std::size_t codes = CodeCount(classes.symbols_of(c));
    if (codes > 1) bytes += codes;
  }
  return Cost{bytes} << (3 + kCostBits);
}

Cost OverfitCost(const Sample& sample, const Classes& classes) {
  if (sample.complete || sample.units_sampled == 0) return 0;
  std::uint64_t numbers = 0;
  for (std::size_t c = 0; c < kClassCount; ++c) {
    numbers += classes.units[c] != 0 ? 1 : 0;
    const std::span<const std::uint64_t> buckets = classes.symbols_of(c).subspan(classes.dense ? 1 : 0);
    numbers += buckets.size() - static_cast<std::uint64_t>(std::count(buckets.begin(), buckets.end(), 0));
  }
  return ((Cost{3} * numbers) << kCostBits) / 2 * sample.units / sample.units_sampled;
}

}  // namespace weightwire
