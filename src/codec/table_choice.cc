#include "codec/table_choice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>

#include "base/bytes.h"
#include "codec/waiting.h"

namespace weightwire {

namespace {

// Costs are in bits, in units of 2^-20.
using Cost = unsigned __int128;
constexpr int kCostBits = 20;
constexpr Cost kImpossible = std::numeric_limits<std::uint64_t>::max();

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

// A sample's counts by the classes of a rule. In those for dense tables unchanged units have the symbol 0.
struct Classes {
  bool dense = false;
  std::size_t alphabet = 0;
  std::array<std::uint64_t, kClassCount> units{};
  std::array<std::uint64_t, kClassCount> changed{};
  std::vector<std::uint64_t> symbols;  // class after class

  [[nodiscard]] std::span<const std::uint64_t> symbols_of(std::size_t c) const {
    return std::span(symbols).subspan(c * alphabet, alphabet);
  }
};

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

// Where cost_of(number) is least for numbers first .. last; of equal ones the first. It falls towards that from both
// sides, so a look at every eighth tells about where.
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

SymbolWeights WeightsOf(std::span<const std::uint64_t> counts, bool complete) {
  SymbolWeights weights;
  weights.tail = !complete;
  std::size_t size = counts.size();
  while (size > 0 && counts[size - 1] == 0) --size;
  if (size == 0) {
    if (!complete) weights.codes = {1};
    return weights;
  }
  const std::uint64_t largest = *std::max_element(counts.begin(), counts.end());
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
Cost SymbolCost(const Classes& classes, const PriceOf& price_of) {
  Cost cost = 0;
  for (std::size_t c = 0; c < kClassCount; ++c) {
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

Cost SymbolCost(const Classes& classes, const TableSet& set) {
  std::vector<SymbolPrices> prices;
  prices.reserve(kClassCount);
  for (const SymbolWeights& weights : set.symbols) prices.emplace_back(weights, set.AlphabetSize(), set.dense);
  return SymbolCost(classes, [&](std::size_t c, std::size_t s) { return prices[c].Of(s); });
}

Cost PositionCost(const Classes& classes, const TableSet& set, int scale) {
  if (set.dense) return 0;
  Cost cost = 0;
  for (std::size_t c = 0; c < kClassCount; ++c) {
    cost += PositionCost(classes.units[c], classes.changed[c], std::clamp(set.rate_codes[c] + scale, 0, kMaxRateCode));
  }
  return cost;
}

// What costs so much in the sample, scaled up to all of the entry.
Cost OfAll(const Sample& sample, Cost position_cost, Cost symbol_cost) {
  if (symbol_cost == kImpossible) return kImpossible;
  return sample.units_sampled == 0 ? 0 : (position_cost + symbol_cost) * sample.units / sample.units_sampled;
}

// The scale at which the set's rates cost least.
int BestScale(const Classes& classes, const TableSet& set, bool few) {
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
  return few ? best(std::uint64_t{}) : best(Cost{});
}

enum class Kind : std::uint8_t { kConditioned, kUniform, kDense };
constexpr std::size_t kKinds = 3;

// The rule with the window of classes that suits the sample.
ClassRule WithWindow(ClassRule rule, const Sample& sample) {
  if (rule.bits > 4) rule.lowest = LowestField(sample);
  return rule;
}

// A set for these counts, but for its rates.
TableSet SetWithSymbols(const Classes& classes, const ClassRule& rule, const Sample& sample) {
  TableSet set;
  set.unit_bits = 8 * sample.unit_bytes;
  set.dense = classes.dense;
  set.rule = rule;
  for (std::size_t c = 0; c < kClassCount; ++c) set.symbols[c] = WeightsOf(classes.symbols_of(c), sample.complete);
  return set;
}

void SetRates(const Classes& classes, bool complete, Kind kind, TableSet& set) {
  set.uniform = kind == Kind::kUniform;
  if (kind == Kind::kConditioned) ChooseRates(classes, complete, set);
  if (kind == Kind::kUniform) ChooseUniformRate(classes, complete, set);
}

TableSet BuildSet(const Sample& sample, ClassRule rule, Kind kind) {
  rule = WithWindow(rule, sample);
  const Classes classes = InClasses(sample, rule, kind == Kind::kDense);
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

// Tables made from a part fit that part better than the rest: by about half a bit for each of their numbers, and the
// rest worse by as much. Without this, entries would get tables of their own for nothing.
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

// A dense tile has events for all of its units, which take memory however cheap they are.
constexpr int kMaxDenseTileLog2 = 14;

// Tiles of half of so many bytes to all of them: small enough to spread over threads, large enough to cost little.
constexpr unsigned kTileBytes = 1024;
constexpr unsigned kGapTileBytes = 2048;
int TileLog2(Cost cost, std::uint64_t units, unsigned tile_bytes) {
  const Cost tile_cost = Cost{tile_bytes} * 8 << kCostBits;
  int log2 = kMinTileLog2 + 4;
  while (log2 < kMaxTileLog2 && (cost << (log2 + 1)) <= tile_cost * units) ++log2;
  return log2;
}

// The number of the set and the scale, which entries without tables do not have.
constexpr Cost kNamingCost = Cost{16} << kCostBits;

// At most what an entry takes in gaps mode. Where the gaps lie is not known, so they are taken to be at their worst.
Cost GapsCost(const Sample& sample) {
  if (sample.units_sampled == 0) return 0;
  const std::uint64_t passed = sample.units_sampled - sample.changed;
  std::uint64_t bytes = std::min(sample.changed + passed / 255, 2 * (sample.changed + passed / 65535));
  bytes += (sample.changed + 1) / 2;
  // Magnitudes of bucket b are at most 2^(b / 2 + 1). The short ones end in bucket 5.
  for (const FieldCounts& field : sample.fields) {
    const std::span<const std::uint64_t> buckets = sample.buckets_of(field);
    for (std::size_t b = 5; b < buckets.size(); ++b) bytes += buckets[b] * ((b / 2 + 1 + 6) / 7);
  }
  const Cost all = Cost{bytes} * sample.units / sample.units_sampled;
  const Cost heads = 2 * (1 + 2 * all / kGapTileBytes);
  return (all + heads) << (3 + kCostBits);
}

// A way to code an entry, and what it costs beside tables that are there anyway.
struct Option {
  Cost cost = kImpossible;
  EntryMode mode = EntryMode::kWhole;
  int scale = 0;
  std::optional<std::size_t> shared;    // an index into the sets …
  std::shared_ptr<const TableSet> own;  // … or tables of its own
};

// A set that entries may share, and what its symbols cost.
struct SharedSet {
  TableSet set;
  std::vector<std::uint64_t> prices;  // class after class

  explicit SharedSet(TableSet made) : set(std::move(made)) {
    const auto alphabet = static_cast<std::size_t>(set.AlphabetSize());
    for (const SymbolWeights& weights : set.symbols) {
      const SymbolPrices of_class(weights, set.AlphabetSize(), set.dense);
      for (std::size_t s = 0; s < alphabet; ++s) prices.push_back(of_class.Of(s));
    }
  }
};

class Chooser {
 public:
  // At most `max_sets` more sets, of which `max_own` are for one entry each.
  Chooser(CodingRequest request, std::size_t max_sets, std::size_t max_own, std::vector<TableSet>& sets)
      : request_(request), sets_left_(max_sets), own_left_(std::min(max_own, max_sets)), sets_(sets) {}

  // Tables for entries that may share them: units of one width, classes by one rule.
  void AddShared(const Sample& merged, ClassRule rule) {
    for (std::optional<SharedSet>& shared : shared_) shared.reset();
    shared_index_.fill(std::nullopt);
    const auto add = [&](Kind kind) { shared_[static_cast<std::size_t>(kind)].emplace(BuildSet(merged, rule, kind)); };
    const bool many = merged.changed * 4 > merged.units_sampled;
    if (Wants(CodingRequest::kConditioned) && rule.bits != 0) add(Kind::kConditioned);
    if (Wants(CodingRequest::kUniform) || (Wants(CodingRequest::kConditioned) && rule.bits == 0)) add(Kind::kUniform);
    if (request_ == CodingRequest::kDense || (request_ == CodingRequest::kSmallest && many)) add(Kind::kDense);
  }

  // Codings of the entries that AddShared was told of.
  std::vector<Coding> Choose(std::span<const SampledEntry* const> entries) {
    std::vector<Weighed> weighed;
    weighed.reserve(entries.size());
    for (const SampledEntry* entry : entries) weighed.push_back(Weigh(*entry));
    for (std::size_t kind = 0; kind < shared_index_.size(); ++kind) DropUnlessItPays(kind, weighed);
    std::vector<Coding> codings;
    codings.reserve(entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      codings.push_back(CodingOf(Affordable(weighed[i]), entries[i]->sample));
    }
    return codings;
  }

 private:
  [[nodiscard]] bool Wants(CodingRequest request) const {
    return request_ == CodingRequest::kSmallest || request_ == request;
  }

  // The best of all ways, and of those that need fewer sets.
  struct Weighed {
    Option best;
    Option alone;        // without a shared set
    Option without_own;  // without a set of its own
    Option bare;         // without tables: always possible, whatever was asked for
  };

  Weighed Weigh(const SampledEntry& entry) const {
    Weighed weighed;
    weighed.bare.cost = Cost{entry.sample.units} * static_cast<unsigned>(8 * entry.sample.unit_bytes) << kCostBits;
    if (request_ != CodingRequest::kWhole) {
      const Cost gaps = GapsCost(entry.sample);
      if (gaps < weighed.bare.cost) weighed.bare = {gaps, EntryMode::kGaps, 0, std::nullopt, nullptr};
    }
    if (request_ == CodingRequest::kSmallest || request_ == CodingRequest::kWhole) weighed.alone = weighed.bare;
    weighed.best = weighed.alone;
    weighed.without_own = weighed.alone;
    // Uniform first: of two equal ones the faster is taken.
    Try(entry, std::array{Kind::kUniform, Kind::kConditioned}, weighed);
    Try(entry, std::array{Kind::kDense}, weighed);
    WW_CHECK(weighed.best.cost != kImpossible);
    return weighed;
  }

  // A shared set is written once for all who use it. If they would do nearly as well without, they do.
  void DropUnlessItPays(std::size_t kind, std::vector<Weighed>& weighed) const {
    Cost gain = 0;
    bool used = false;
    for (const Weighed& entry : weighed) {
      if (entry.best.shared != kind) continue;
      if (entry.alone.cost == kImpossible) return;
      used = true;
      gain += entry.alone.cost - entry.best.cost;
    }
    if (!used || gain >= TableCost(shared_[kind]->set)) return;
    for (Weighed& entry : weighed) {
      if (entry.best.shared == kind) entry.best = entry.alone;
    }
  }

  // The best way for which there are sets left. A file has room for so many; what would need more shares, or does
  // without.
  [[nodiscard]] const Option& Affordable(const Weighed& weighed) const {
    const Option& option = HasTables(weighed.best.mode) && !weighed.best.shared.has_value() && own_left_ == 0
                               ? weighed.without_own
                               : weighed.best;
    const bool to_be_written = option.shared.has_value() && !shared_index_[*option.shared].has_value();
    const bool possible = option.cost != kImpossible && !(to_be_written && sets_left_ == 0);
    return possible ? option : weighed.bare;
  }

  Coding CodingOf(const Option& option, const Sample& sample) {
    Coding coding;
    coding.mode = option.mode;
    coding.scale = option.scale;
    if (option.mode == EntryMode::kWhole) return coding;
    const unsigned tile_bytes = option.mode == EntryMode::kGaps ? kGapTileBytes : kTileBytes;
    coding.tile_log2 = TileLog2(option.cost, std::max<std::uint64_t>(1, sample.units), tile_bytes);
    if (option.mode == EntryMode::kDense) coding.tile_log2 = std::min(coding.tile_log2, kMaxDenseTileLog2);
    if (HasTables(option.mode)) {
      coding.table_set = option.shared.has_value() ? Shared(*option.shared) : Own(*option.own);
    }
    return coding;
  }

  // All dense or none of them: then they differ in their rates only, and classes and symbols are counted once.
  void Try(const SampledEntry& entry, std::span<const Kind> kinds, Weighed& weighed) const {
    const Sample& sample = entry.sample;
    std::optional<Classes> by_shared;
    std::optional<Classes> by_own;
    Cost shared_symbols = 0;
    Cost own_symbols = 0;
    TableSet own;
    for (const Kind kind : kinds) {
      const std::optional<SharedSet>& shared = shared_[static_cast<std::size_t>(kind)];
      if (!shared.has_value()) continue;
      const bool dense = kind == Kind::kDense;
      if (!by_shared.has_value()) {
        by_shared = InClasses(sample, shared->set.rule, dense);
        shared_symbols = SymbolCost(
            *by_shared, [&](std::size_t c, std::size_t s) { return shared->prices[c * by_shared->alphabet + s]; });
        const ClassRule rule = WithWindow(entry.rule, sample);
        by_own = InClasses(sample, rule, dense);
        own = SetWithSymbols(*by_own, rule, sample);
        own_symbols = SymbolCost(*by_own, own);
      }
      const EntryMode mode = dense ? EntryMode::kDense : EntryMode::kSparse;
      const int scale = dense ? 0 : BestScale(*by_shared, shared->set, sample.units_sampled < kFewUnits);
      const Cost with_shared =
          OfAll(sample, PositionCost(*by_shared, shared->set, scale), shared_symbols) + kNamingCost;
      const Option sharing{with_shared, mode, scale, static_cast<std::size_t>(kind), nullptr};
      if (with_shared < weighed.best.cost) weighed.best = sharing;
      if (with_shared < weighed.without_own.cost) weighed.without_own = sharing;
      SetRates(*by_own, sample.complete, kind, own);
      const Cost with_own = OfAll(sample, PositionCost(*by_own, own, 0), own_symbols) + kNamingCost + TableCost(own) +
                            OverfitCost(sample, *by_own);
      if (with_own < weighed.alone.cost) {
        weighed.alone = {with_own, mode, 0, std::nullopt, std::make_shared<const TableSet>(own)};
      }
      if (with_own < weighed.best.cost) weighed.best = weighed.alone;
    }
  }

  std::size_t Own(const TableSet& set) {
    --own_left_;
    return Append(set);
  }

  std::size_t Append(const TableSet& set) {
    WW_CHECK(sets_left_ > 0);
    --sets_left_;
    sets_.push_back(set);
    return sets_.size() - 1;
  }

  // A shared set is written once somebody uses it.
  std::size_t Shared(std::size_t kind) {
    std::optional<std::size_t>& index = shared_index_[kind];
    if (!index.has_value()) {
      index = Append(shared_[kind]->set);
    }
    return *index;
  }

  CodingRequest request_;
  std::size_t sets_left_;
  std::size_t own_left_;  // no more than sets_left_
  std::vector<TableSet>& sets_;
  std::array<std::optional<SharedSet>, kKinds> shared_;  // by kind
  std::array<std::optional<std::size_t>, kKinds> shared_index_;
};

}  // namespace

std::span<const ClassRule> CandidateRules(DType dtype) {
  constexpr Order kInt = Order::kInteger;
  constexpr Order kFloat = Order::kSignMagnitude;
  static constexpr std::array<ClassRule, 4> kByte = {
      {{3, 4, 0, kFloat}, {2, 5, 0, kFloat}, {4, 4, 0, kInt}, {0, 0, 0, kInt}}};
  static constexpr std::array<ClassRule, 3> kShort = {{{7, 8, 0, kFloat}, {10, 5, 0, kFloat}, {0, 0, 0, kInt}}};
  static constexpr std::array<ClassRule, 2> kWord = {{{23, 8, 0, kFloat}, {0, 0, 0, kInt}}};
  static constexpr std::array<ClassRule, 1> kLong = {{{55, 8, 0, kFloat}}};
  static constexpr std::array<ClassRule, 1> kPlain = {{{0, 0, 0, kInt}}};
  const auto one = [](auto& rules, std::size_t k) { return std::span<const ClassRule>(rules).subspan(k, 1); };
  switch (dtype) {
    case DType::kBF16:
      return one(kShort, 0);
    case DType::kF16:
      return one(kShort, 1);
    case DType::kF32:
      return one(kWord, 0);
    case DType::kF64:
      return kLong;
    case DType::kF8E4M3:
    case DType::kF8E4M3Fnuz:
      return one(kByte, 0);
    case DType::kF8E5M2:
    case DType::kF8E5M2Fnuz:
      return one(kByte, 1);
    case DType::kU8:
    case DType::kI8:
      return kByte;
    case DType::kU16:
    case DType::kI16:
      return kShort;
    case DType::kU32:
    case DType::kI32:
      return kWord;
    default:
      return kPlain;
  }
}

std::uint64_t EstimateBits(const SampledEntry& entry) {
  const Kind kind = entry.rule.bits == 0 ? Kind::kUniform : Kind::kConditioned;
  const TableSet set = BuildSet(entry.sample, entry.rule, kind);
  const Classes classes = InClasses(entry.sample, set.rule, set.dense);
  const Cost cost = OfAll(entry.sample, PositionCost(classes, set, 0), SymbolCost(classes, set));
  return static_cast<std::uint64_t>((cost + TableCost(set)) >> kCostBits);
}

Coding GapsCoding(const ChangeCount& counted) {
  // A gap and half a byte for each change; what else there is does not matter for the size of tiles.
  const Cost cost = Cost{counted.changed} * 12 << kCostBits;
  Coding coding;
  coding.mode = EntryMode::kGaps;
  coding.tile_log2 = TileLog2(cost, std::max<std::uint64_t>(1, counted.units_sampled), kGapTileBytes);
  return coding;
}

std::vector<Coding> ChooseCodings(std::span<const SampledEntry> entries, CodingRequest request, std::size_t max_sets,
                                  std::vector<TableSet>& sets) {
  const auto key = [](const SampledEntry& e) {
    return std::make_tuple(e.sample.unit_bytes, e.rule.shift, e.rule.bits, e.rule.order);
  };
  std::map<decltype(key(entries[0])), std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < entries.size(); ++i) groups[key(entries[i])].push_back(i);

  std::vector<Coding> codings(entries.size());
  // Shared sets do for many entries, so there is room for all of them before one entry gets its own.
  const std::size_t for_sharing = std::min(max_sets, kKinds * groups.size());
  Chooser chooser(request, max_sets, max_sets - for_sharing, sets);
  for (const auto& [unused, members] : groups) {
    Sample merged;
    merged.unit_bytes = entries[members[0]].sample.unit_bytes;
    for (const std::size_t i : members) merged.Add(entries[i].sample);
    chooser.AddShared(merged, entries[members[0]].rule);
    std::vector<const SampledEntry*> of_group;
    for (const std::size_t i : members) of_group.push_back(&entries[i]);
    const std::vector<Coding> chosen = chooser.Choose(of_group);
    for (std::size_t k = 0; k < members.size(); ++k) codings[members[k]] = chosen[k];
  }
  return codings;
}

}  // namespace weightwire
