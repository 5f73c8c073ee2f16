#include "codec/encode/mode_choice.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <tuple>

#include "codec/encode/class_rules.h"
#include "codec/encode/sample_tables.h"

namespace weightwire {

namespace {

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
  std::optional<std::size_t> shared;  // an index into the sets …
  std::optional<TableKind> own;       // … or tables of its own, which are made once it is chosen
};

// A set that entries may share, and what its symbols cost.
struct SharedSet {
  TableSet set;
  std::vector<std::uint64_t> prices;

  explicit SharedSet(TableSet made) : set(std::move(made)), prices(SymbolPricesOf(set)) {}
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
    const auto add = [&](TableKind kind) {
      shared_[static_cast<std::size_t>(kind)].emplace(BuildSet(merged, rule, kind));
    };
    const bool many = merged.changed * 4 > merged.units_sampled;
    if (Wants(CodingRequest::kConditioned) && rule.bits != 0) add(TableKind::kConditioned);
    if (Wants(CodingRequest::kUniform) || (Wants(CodingRequest::kConditioned) && rule.bits == 0))
      add(TableKind::kUniform);
    if (request_ == CodingRequest::kDense || (request_ == CodingRequest::kSmallest && many)) add(TableKind::kDense);
  }

  // Codings of the entries that AddShared was told of.
  std::vector<Coding> Choose(std::span<const SampledEntry* const> entries, ThreadPool& pool) {
    std::vector<Weighed> weighed(entries.size());
    constexpr std::size_t kTogether = 8;
    pool.ParallelFor((entries.size() + kTogether - 1) / kTogether, [&](std::size_t job, std::size_t) {
      const std::size_t end = std::min(entries.size(), (job + 1) * kTogether);
      for (std::size_t i = job * kTogether; i < end; ++i) weighed[i] = Weigh(*entries[i]);
    });
    for (std::size_t kind = 0; kind < shared_index_.size(); ++kind) DropUnlessItPays(kind, weighed);
    std::vector<Coding> codings;
    codings.reserve(entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      codings.push_back(CodingOf(Affordable(weighed[i]), *entries[i]));
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
      if (gaps < weighed.bare.cost) weighed.bare = {gaps, EntryMode::kGaps, 0, std::nullopt, std::nullopt};
    }
    if (request_ == CodingRequest::kSmallest || request_ == CodingRequest::kWhole) weighed.alone = weighed.bare;
    weighed.best = weighed.alone;
    weighed.without_own = weighed.alone;
    // Uniform first: of two equal ones the faster is taken.
    Try(entry, std::array{TableKind::kUniform, TableKind::kConditioned}, weighed);
    Try(entry, std::array{TableKind::kDense}, weighed);
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

  Coding CodingOf(const Option& option, const SampledEntry& entry) {
    const Sample& sample = entry.sample;
    Coding coding;
    if (option.mode == EntryMode::kWhole) return kWholeCoding;
    coding.mode = option.mode;
    coding.scale = option.scale;
    const unsigned tile_bytes = option.mode == EntryMode::kGaps ? kGapTileBytes : kTileBytes;
    coding.tile_log2 = TileLog2(option.cost, std::max<std::uint64_t>(1, sample.units), tile_bytes);
    if (option.mode == EntryMode::kDense) coding.tile_log2 = std::min(coding.tile_log2, kMaxDenseTileLog2);
    if (HasTables(option.mode)) {
      coding.table_set =
          option.shared.has_value() ? Shared(*option.shared) : Own(BuildSet(sample, entry.rule, *option.own));
    }
    return coding;
  }

  // All dense or none of them: then they differ in their rates only, and classes and symbols are counted once.
  void Try(const SampledEntry& entry, std::span<const TableKind> kinds, Weighed& weighed) const {
    const Sample& sample = entry.sample;
    std::optional<Classes> by_shared;
    std::optional<Classes> by_own;  // unless they are the same
    Cost shared_symbols = 0;
    for (const TableKind kind : kinds) {
      const std::optional<SharedSet>& shared = shared_[static_cast<std::size_t>(kind)];
      if (!shared.has_value()) continue;
      const bool dense = kind == TableKind::kDense;
      if (!by_shared.has_value()) {
        by_shared = InClasses(sample, shared->set.rule, dense);
        shared_symbols = SymbolCost(*by_shared, std::span(shared->prices));
        const ClassRule own_rule = WithWindow(entry.rule, sample);
        if (own_rule != shared->set.rule) by_own = InClasses(sample, own_rule, dense);
      }
      const EntryMode mode = dense ? EntryMode::kDense : EntryMode::kSparse;
      const int scale = dense ? 0 : BestScale(*by_shared, shared->set);
      const Cost with_shared =
          OfAll(sample, PositionCost(*by_shared, shared->set, scale), shared_symbols) + kNamingCost;
      const Option sharing{with_shared, mode, scale, static_cast<std::size_t>(kind), std::nullopt};
      if (with_shared < weighed.best.cost) weighed.best = sharing;
      if (with_shared < weighed.without_own.cost) weighed.without_own = sharing;
      TryOwn(sample, kind, by_own.has_value() ? *by_own : *by_shared, weighed);
    }
  }

  // The same with tables of the entry's own.
  static void TryOwn(const Sample& sample, TableKind kind, const Classes& classes, Weighed& weighed) {
    const Cost limit = weighed.alone.cost;  // not below the best
    const Cost fixed = kNamingCost + OwnTableCost(classes, kind) + OverfitCost(sample, classes);
    if (fixed >= limit) return;
    const Cost positions = OwnPositionCost(classes, sample.complete, kind);
    // The direction of each change takes a bit.
    if (fixed + OfAll(sample, positions, Cost{sample.changed} << kCostBits) >= limit) return;
    const Cost with_own = fixed + OfAll(sample, positions, OwnSymbolCost(classes, sample.complete));
    if (with_own >= limit) return;
    weighed.alone = {with_own, classes.dense ? EntryMode::kDense : EntryMode::kSparse, 0, std::nullopt, kind};
    if (with_own < weighed.best.cost) weighed.best = weighed.alone;
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
  std::array<std::optional<SharedSet>, kTableKinds> shared_;  // by kind
  std::array<std::optional<std::size_t>, kTableKinds> shared_index_;
};

// --- samples ---

bool SameBytes(const std::uint8_t* a, const std::uint8_t* b, std::uint64_t size) {
  return size == 0 || std::memcmp(a, b, size) == 0;
}

// The new units that a sample looks at. `read` holds them if a reader makes them.
Result<NewUnits> UnitsToSample(const EntryToCode& entry, const ModeRequest& request, std::vector<std::uint8_t>& read) {
  if (entry.reader == nullptr) return NewUnits{entry.new_units, false};
  WW_TRY(read, ReadSampleBlocks(*entry.reader, entry.units, UnitBytes(entry.dtype), request.thinning));
  return NewUnits{read.data(), true};
}

// Estimates the bits of an entry with tables of its own, to choose between candidate rules.
std::uint64_t EstimateBits(const SampledEntry& entry) {
  const TableKind kind = entry.rule.bits == 0 ? TableKind::kUniform : TableKind::kConditioned;
  const TableSet set = BuildSet(entry.sample, entry.rule, kind);
  const Classes classes = InClasses(entry.sample, set.rule, set.dense);
  const Cost cost = OfAll(entry.sample, PositionCost(classes, set, 0), SymbolCost(classes, set));
  return static_cast<std::uint64_t>((cost + TableCost(set)) >> kCostBits);
}

// An entry of up to so many bytes in whose sample nothing changes is compared whole before it gets tables: that is
// quicker than to code it, and most such entries are the same. Larger ones are left to all threads.
constexpr std::uint64_t kCompareWholeBytes = std::uint64_t{1} << 20;

// Whether no bit of an entry changes. False if that would take long to find out.
Result<bool> IsSame(const EntryToCode& entry) {
  const auto unit_bytes = static_cast<std::uint64_t>(UnitBytes(entry.dtype));
  const std::uint64_t size_bytes = entry.units * unit_bytes;
  if (size_bytes > kCompareWholeBytes) return false;
  if (entry.reader == nullptr) return SameBytes(entry.old_units, entry.new_units, size_bytes);
  if (!entry.reader->reads_small_batches()) return false;
  std::vector<std::uint8_t> read(kChunkUnits * unit_bytes);
  for (std::uint64_t first = 0; first < entry.units; first += kChunkUnits) {
    const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(kChunkUnits, entry.units - first));
    WW_RETURN_IF_ERROR(entry.reader->Read({&first, 1}, count, read.data()));
    if (!SameBytes(entry.old_units + first * unit_bytes, read.data(), count * unit_bytes)) return false;
  }
  return true;
}

// Whether no bit of an entry changes that a sample looks at completely; false for others.
bool IsSameSample(const EntryToCode& entry, const ModeRequest& request, const NewUnits& new_units) {
  return SampleIsComplete(entry.units, request.thinning) &&
         SameBytes(entry.old_units, new_units.units, entry.units * static_cast<std::uint64_t>(UnitBytes(entry.dtype)));
}

// Samples an entry by the best of the candidate rules; nullopt if it certainly does not change. Also of an entry that
// may move: what was read is what the base has.
Result<std::optional<SampledEntry>> BestSample(const EntryToCode& entry, const ModeRequest& request,
                                               const Kernels& kernels) {
  std::vector<std::uint8_t> read;
  WW_TRY(const NewUnits new_units, UnitsToSample(entry, request, read));
  if (IsSameSample(entry, request, new_units)) return std::optional<SampledEntry>();
  const std::span<const ClassRule> rules = CandidateClassRules(entry.dtype);
  std::optional<SampledEntry> best;
  std::uint64_t best_bits = 0;
  for (const ClassRule& rule : rules) {
    SampledEntry sampled{rule, TakeSample(entry.old_units, new_units, entry.units, UnitBytes(entry.dtype), rule,
                                          request.thinning, kernels)};
    if (request.may_move) sampled.sample.complete = false;
    const bool only = rules.size() == 1 || sampled.sample.changed == 0;
    const std::uint64_t bits = only ? 0 : EstimateBits(sampled);
    if (!best.has_value() || bits < best_bits) {
      best = std::move(sampled);
      best_bits = bits;
    }
    if (only) break;
  }
  if (best->sample.changed == 0) {
    WW_TRY(const bool same, best->sample.complete ? true : IsSame(entry));
    if (same) best.reset();
  }
  return best;
}

// Gaps mode has no tables: a count is enough, and is quick. nullopt if nothing changes.
Result<std::optional<Coding>> ChooseGaps(const EntryToCode& entry, const ModeRequest& request, const Kernels& kernels) {
  std::vector<std::uint8_t> read;
  WW_TRY(const NewUnits new_units, UnitsToSample(entry, request, read));
  if (IsSameSample(entry, request, new_units)) return std::optional<Coding>();
  const ChangeCount counted =
      CountChanges(entry.old_units, new_units, entry.units, UnitBytes(entry.dtype), request.thinning, kernels);
  if (counted.changed == 0) {
    WW_TRY(const bool same, counted.complete && !request.may_move ? true : IsSame(entry));
    if (same) return std::optional<Coding>();
  }
  // A gap and half a byte for each change; what else there is does not matter for the size of tiles.
  const Cost cost = Cost{counted.changed} * 12 << kCostBits;
  Coding coding;
  coding.mode = EntryMode::kGaps;
  coding.tile_log2 = TileLog2(cost, std::max<std::uint64_t>(1, counted.units_sampled), kGapTileBytes);
  return std::optional<Coding>(coding);
}

}  // namespace

Result<std::vector<std::optional<Coding>>> ChooseModes(std::span<const EntryToCode> entries, const ModeRequest& request,
                                                       std::size_t max_sets, std::vector<TableSet>& sets,
                                                       const Kernels& kernels, ThreadPool& pool) {
  std::vector<std::optional<Coding>> codings(entries.size());
  std::vector<std::optional<SampledEntry>> samples(entries.size());
  WW_RETURN_IF_ERROR(pool.TryParallelFor(entries.size(), [&](std::size_t i, std::size_t) -> Status {
    if (!entries[i].has_old || request.coding == CodingRequest::kWhole) {
      codings[i] = kWholeCoding;
    } else if (request.coding == CodingRequest::kGaps) {
      WW_TRY(codings[i], ChooseGaps(entries[i], request, kernels));
    } else {
      WW_TRY(samples[i], BestSample(entries[i], request, kernels));
    }
    return Ok();
  }));
  std::vector<SampledEntry> sampled;
  std::vector<std::size_t> owners;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].has_value()) continue;
    sampled.push_back(std::move(*samples[i]));
    owners.push_back(i);
  }
  if (sampled.empty()) return codings;
  const std::vector<Coding> chosen = ChooseCodings(sampled, request.coding, max_sets, sets, pool);
  for (std::size_t k = 0; k < owners.size(); ++k) codings[owners[k]] = chosen[k];
  return codings;
}

std::vector<Coding> ChooseCodings(std::span<const SampledEntry> entries, CodingRequest request, std::size_t max_sets,
                                  std::vector<TableSet>& sets, ThreadPool& pool) {
  const auto key = [](const SampledEntry& e) {
    return std::make_tuple(e.sample.unit_bytes, e.rule.shift, e.rule.bits, e.rule.order);
  };
  std::map<decltype(key(entries[0])), std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < entries.size(); ++i) groups[key(entries[i])].push_back(i);

  std::vector<Coding> codings(entries.size());
  // Shared sets do for many entries, so there is room for all of them before one entry gets its own.
  const std::size_t for_sharing = std::min(max_sets, kTableKinds * groups.size());
  Chooser chooser(request, max_sets, max_sets - for_sharing, sets);
  for (const auto& [unused, members] : groups) {
    SampleSum sum(entries[members[0]].sample.unit_bytes);
    for (const std::size_t i : members) sum.Add(entries[i].sample);
    chooser.AddShared(std::move(sum).Finish(), entries[members[0]].rule);
    std::vector<const SampledEntry*> of_group;
    for (const std::size_t i : members) of_group.push_back(&entries[i]);
    const std::vector<Coding> chosen = chooser.Choose(of_group, pool);
    for (std::size_t k = 0; k < members.size(); ++k) codings[members[k]] = chosen[k];
  }
  return codings;
}

bool IsSmallerWhole(const Coding& coding, std::uint64_t coded_bytes, std::uint64_t whole_bytes) {
  return coding.mode == EntryMode::kGaps && coded_bytes >= whole_bytes;
}

}  // namespace weightwire
