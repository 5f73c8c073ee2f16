#include "codec/encode/encoder.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>

#include "codec/encode/class_rules.h"
#include "codec/encode/delta_assembly.h"
#include "codec/encode/entry_work.h"
#include "codec/encode/tile_encoder.h"
#include "codec/format/gap_tile.h"
#include "codec/format/units.h"
#include "tensor/json.h"

namespace weightwire {

namespace {

// Entries are sampled and their tables chosen in groups of this many, which bounds the memory for samples.
constexpr std::size_t kGroupEntries = 512;

// What one thread works with.
struct Worker {
  explicit Worker(const Kernels& kernels) : encoder(kernels) {}
  TileEncoder encoder;
  std::vector<std::uint8_t> streams;
  std::vector<ReplacedUnits> replaced;
  UndoBits kept;                   // what `replaced` points to
  std::vector<std::uint8_t> read;  // new units of the tiles in work, if they come from a reader in large batches

  // For the next encoding: as new, but with the memory it has, unless an unusual state made that large. What was kept
  // has been given away, and may come back (EncodeScratch::Reuse).
  void Reset() {
    constexpr std::size_t kKeepBytes = std::size_t{16} << 20;
    for (std::vector<std::uint8_t>* bytes : {&streams, &read}) {
      if (bytes->capacity() > kKeepBytes) *bytes = {};
      bytes->clear();
    }
    if (encoder.memory_bytes() > kKeepBytes) encoder = TileEncoder(encoder.kernels());
    replaced.clear();
    kept = {};
  }
};

Error BadRequest(const std::string& what) { return {ErrorCode::kInvalidArgument, "cannot encode: " + what}; }

class DeltaEncoder {
 public:
  // REQUIRES: a worker for each thread of the pool, as new.
  DeltaEncoder(const EncodeRequest& request, const Kernels& kernels, ThreadPool& pool, std::span<Worker> workers)
      : request_(request), kernels_(kernels), pool_(pool), workers_(workers) {}

  Result<EncodedDelta> Encode() {
    WW_RETURN_IF_ERROR(CheckRequest());
    Result<EncodedDelta> delta = EncodeAll();
    if (!delta.ok()) {
      for (const Worker& worker : workers_) RestoreReplaced(worker.replaced, request_.entries, *request_.layout_after);
    }
    return delta;
  }

 private:
  Result<EncodedDelta> EncodeAll() {
    for (std::size_t begin = 0; begin < works_.size(); begin += kGroupEntries) {
      const std::span<EntryWork> group =
          std::span(works_).subspan(begin, std::min(kGroupEntries, works_.size() - begin));
      // Each group gets its share of the sets that are left, so that none is without.
      const std::size_t groups_left = (works_.size() - begin + kGroupEntries - 1) / kGroupEntries;
      WW_RETURN_IF_ERROR(ChooseCodingsOf(group, (kMaxTableSets - sets_.size()) / groups_left));
      WW_RETURN_IF_ERROR(EncodeTiles(group));
    }
    return Assemble();
  }

  // All that can be wrong with it, before a base copy is touched.
  Status CheckRequest() {
    if (request_.digests_before.has_value() && request_.digests_before->size() != request_.layout_before->size()) {
      return BadRequest("there must be a digest for every tensor");
    }
    std::size_t previous = 0;
    std::uint64_t units = 0;
    for (std::size_t i = 0; i < request_.entries.size(); ++i) {
      const EncodeEntry& entry = request_.entries[i];
      if (entry.tensor >= request_.layout_after->size()) return BadRequest("an entry names no tensor");
      if (entry.tensor < previous) return BadRequest("entries are not in the order of their tensors");
      previous = entry.tensor;
      const TensorSpec& spec = request_.layout_after->tensors()[entry.tensor];
      EntryWork work;
      work.source = &entry;
      work.position = i;
      if (entry.box.has_value()) {
        Result<BoxMap> map = BoxMap::Of(spec, *entry.box);
        if (!map.ok()) return BadRequest(map.error().message());
        work.map = std::move(map).value();
      } else {
        work.map = BoxMap(spec);
      }
      const std::uint64_t bytes = work.Bytes();
      if (entry.new_bytes.size() != (entry.reader == nullptr ? bytes : 0) ||
          (entry.has_old && entry.old_bytes.size() != bytes)) {
        return BadRequest("the data of " + Quoted(spec.name) + " is not of the size its box says");
      }
      units += work.map->unit_count();
      works_.push_back(std::move(work));
    }
    thinning_ = SampleThinning(units);
    return Ok();
  }

  [[nodiscard]] const TensorSpec& SpecOf(const EntryWork& work) const {
    return request_.layout_after->tensors()[work.source->tensor];
  }

  Status ChooseCodingsOf(std::span<EntryWork> group, std::size_t max_sets) {
    std::vector<EntryToCode> entries;
    entries.reserve(group.size());
    for (const EntryWork& work : group) {
      const EncodeEntry& source = *work.source;
      entries.push_back({SpecOf(work).dtype, work.map->unit_count(), source.has_old, source.old_bytes.data(),
                         source.new_bytes.data(), source.reader});
    }
    WW_TRY(const auto codings,
           ChooseModes(entries, {request_.coding, thinning_, request_.may_move}, max_sets, sets_, kernels_, pool_));
    for (std::size_t i = 0; i < group.size(); ++i) group[i].coding = codings[i];
    return Ok();
  }

  Status EncodeTiles(std::span<EntryWork> group) {
    struct Job {
      EntryWork* work;
      std::size_t first_tile;
      const ExpandedTables* tables;
    };
    std::vector<Job> jobs;
    // Many entries share a set, and of those many a scale.
    std::map<std::pair<std::size_t, int>, const ExpandedTables> expanded;
    for (EntryWork& work : group) {
      if (!work.coding.has_value()) continue;
      const ExpandedTables* tables = nullptr;
      if (HasTables(work.coding->mode)) {
        const auto [set, scale] = std::pair(work.coding->table_set, work.coding->scale);
        tables = &expanded.try_emplace({set, scale}, sets_[set], scale).first->second;
      }
      const std::size_t tiles = work.TileCount();
      work.streams.resize(tiles);
      work.changed.resize(tiles);
      work.single_steps.resize(tiles);
      work.digest_change.resize(tiles);
      for (std::size_t first = 0; first < tiles; first += kLanes) jobs.push_back({&work, first, tables});
    }
    return pool_.TryParallelFor(jobs.size(), [&](std::size_t i, std::size_t worker) {
      return EncodeJob(*jobs[i].work, jobs[i].first_tile, jobs[i].tables, worker);
    });
  }

  // Gives each tile its new units.
  static Status ProvideNewUnits(const EntryWork& work, std::uint64_t first_unit, std::span<TileInput> tiles,
                                std::vector<std::uint8_t>& read) {
    const EncodeEntry& source = *work.source;
    const auto unit_bytes = static_cast<std::size_t>(work.map->unit_bytes());
    const std::uint8_t* new_units = nullptr;
    if (source.reader == nullptr) {
      new_units = source.new_bytes.data() + first_unit * unit_bytes;
    } else if (!source.has_old || !source.reader->reads_small_batches()) {
      std::uint32_t count = 0;
      for (const TileInput& tile : tiles) count += tile.count;
      read.resize(count * unit_bytes);
      WW_RETURN_IF_ERROR(source.reader->Read({&first_unit, 1}, count, read.data()));
      new_units = read.data();
    }
    std::uint64_t done = 0;
    for (TileInput& tile : tiles) {
      tile.first_unit = first_unit + done;
      if (new_units == nullptr) {
        tile.reader = source.reader;
      } else {
        tile.new_units = new_units + done * unit_bytes;
      }
      done += tile.count;
    }
    return Ok();
  }

  Status EncodeJob(EntryWork& work, std::size_t first_tile, const ExpandedTables* tables, std::size_t worker_index) {
    Worker& worker = workers_[worker_index];
    const int unit_bytes = work.map->unit_bytes();
    const std::size_t count = std::min(kLanes, work.TileCount() - first_tile);
    std::array<TileInput, kLanes> tiles;
    for (std::size_t k = 0; k < count; ++k) {
      const std::uint64_t begin = std::uint64_t{first_tile + k} << work.coding->tile_log2;
      const std::size_t offset = begin * static_cast<std::size_t>(unit_bytes);
      tiles[k].old_units = work.source->has_old ? work.source->old_bytes.data() + offset : nullptr;
      tiles[k].count =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(work.TileUnits(), work.map->unit_count() - begin));
    }
    const std::span<TileInput> inputs = std::span(tiles).first(count);
    const std::uint64_t first_unit = std::uint64_t{first_tile} << work.coding->tile_log2;
    WW_RETURN_IF_ERROR(ProvideNewUnits(work, first_unit, inputs, worker.read));
    const TileDone account = [&](std::size_t k) -> Status {
      return WithUnit(unit_bytes, [&]<typename Unit>() {
        return AccountFor<Unit>(work, first_tile + k, tiles[k], worker, worker.encoder.changes(k));
      });
    };
    if (work.coding->mode == EntryMode::kSparse) {
      WW_RETURN_IF_ERROR(worker.encoder.EncodeSparse(inputs, unit_bytes, *tables, account));
    } else if (work.coding->mode == EntryMode::kDense) {
      WW_RETURN_IF_ERROR(worker.encoder.EncodeDense(inputs, unit_bytes, *tables, account));
    } else if (work.source->has_old) {
      WW_RETURN_IF_ERROR(worker.encoder.Compare(inputs, unit_bytes, account));
    } else {
      for (std::size_t k = 0; k < count; ++k) AccountForNew(work, first_tile + k, tiles[k]);
    }
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t tile = first_tile + k;
      if (work.coding->mode == EntryMode::kGaps) {
        const std::size_t offset = worker.streams.size();
        AppendGapStream(worker.encoder.changes(k), unit_bytes, worker.streams);
        work.streams[tile] = {worker_index, offset, static_cast<std::uint32_t>(worker.streams.size() - offset)};
      } else if (work.coding->mode != EntryMode::kWhole) {
        const std::span<const std::uint8_t> stream = worker.encoder.stream(k);
        work.streams[tile] = {worker_index, worker.streams.size(), static_cast<std::uint32_t>(stream.size())};
        worker.streams.insert(worker.streams.end(), stream.begin(), stream.end());
      }
    }
    return Ok();
  }

  // Digest and count of one tile of a tensor that was not there before.
  void AccountForNew(EntryWork& work, std::size_t tile, const TileInput& input) const {
    const std::uint64_t begin = std::uint64_t{tile} << work.coding->tile_log2;
    const auto unit_bytes = static_cast<std::uint64_t>(work.map->unit_bytes());
    work.changed[tile] = input.count;
    Digest digest;
    work.map->ForEachStretch(begin, input.count, [&](std::uint64_t at, std::uint64_t tensor_unit, std::uint64_t size) {
      const std::uint8_t* from = input.new_units + (at - begin) * unit_bytes;
      digest += DigestOfRange({from, size * unit_bytes}, tensor_unit * unit_bytes, kernels_);
    });
    work.digest_change[tile] = digest;
  }

  // Digest, counts, the base copy and the old bits of one tile.
  template <typename Unit>
  Status AccountFor(EntryWork& work, std::size_t tile, const TileInput& input, Worker& worker,
                    const TileChanges& changes) {
    const std::uint64_t begin = std::uint64_t{tile} << work.coding->tile_log2;
    const std::span<const std::uint32_t> changed = changes.positions;
    work.changed[tile] = static_cast<std::uint32_t>(changed.size());
    if (changed.empty()) return Ok();
    DigestOfChanges digest(kernels_);
    std::span<const std::uint32_t> left = changed;
    work.map->ForEachStretch(begin, input.count, [&](std::uint64_t at, std::uint64_t tensor_unit, std::uint64_t size) {
      const std::uint64_t end = at - begin + size;
      const std::size_t done = changed.size() - left.size();
      const auto in_stretch = static_cast<std::size_t>(std::lower_bound(left.begin(), left.end(), end) - left.begin());
      digest.Changes<Unit>(tensor_unit - (at - begin), left.first(in_stretch), changes.old_units + done * sizeof(Unit),
                           changes.new_units + done * sizeof(Unit));
      left = left.subspan(in_stretch);
    });
    work.digest_change[tile] = digest.Finish();
    work.single_steps[tile] =
        work.coding->mode == EntryMode::kSparse ? changes.single_steps : CountSingleSteps<Unit>(work, changes);
    if (request_.keep_old) {
      const std::span old_units(changes.old_units, changed.size() * sizeof(Unit));
      WW_RETURN_IF_ERROR(worker.kept.Keep(work.position, begin, changed, old_units, worker.replaced));
    }
    if (work.source->update != nullptr) {
      std::uint8_t* base = work.source->update + begin * sizeof(Unit);
      // The tile is in the second cache: a store that has to fetch its line from there would hold up the next.
      constexpr std::size_t kAhead = 24;
      for (std::size_t c = 0; c < changed.size(); ++c) {
        __builtin_prefetch(base + std::size_t{changed[std::min(c + kAhead, changed.size() - 1)]} * sizeof(Unit), 1, 3);
        StoreUnit<Unit>(base, changed[c], LoadUnit<Unit>(changes.new_units, c));
      }
    }
    return Ok();
  }

  template <typename Unit>
  [[nodiscard]] std::uint32_t CountSingleSteps(const EntryWork& work, const TileChanges& changes) const {
    const Order order = HasTables(work.coding->mode) ? sets_[work.coding->table_set].rule.order
                                                     : CandidateClassRules(SpecOf(work).dtype)[0].order;
    std::uint32_t single_steps = 0;
    for (std::size_t c = 0; c < changes.positions.size(); ++c) {
      const Unit up = static_cast<Unit>(ToOrdinal(LoadUnit<Unit>(changes.new_units, c), order) -
                                        ToOrdinal(LoadUnit<Unit>(changes.old_units, c), order));
      single_steps += up == 1 || up == static_cast<Unit>(-1) ? 1 : 0;
    }
    return single_steps;
  }

  Result<EncodedDelta> Assemble() {
    std::vector<const std::vector<std::uint8_t>*> streams;
    for (const Worker& worker : workers_) streams.push_back(&worker.streams);
    WW_TRY(EncodedDelta delta, AssembleDelta(request_, {works_, streams, sets_}));
    if (request_.seal) delta.file = std::exchange(delta.unsealed, {}).Seal();
    for (Worker& worker : workers_) {
      delta.replaced.insert(delta.replaced.end(), worker.replaced.begin(), worker.replaced.end());
      worker.kept.FreeSpare();  // it may be kept for long, and counts
      delta.kept.push_back(std::move(worker.kept));
    }
    return delta;
  }

  const EncodeRequest& request_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  const std::span<Worker> workers_;
  std::vector<EntryWork> works_;
  std::vector<TableSet> sets_;
  std::uint64_t thinning_ = 1;
};

}  // namespace

struct EncodeScratch::Workers {
  std::vector<Worker> all;
};

EncodeScratch::EncodeScratch() : workers_(std::make_unique<Workers>()) {}
EncodeScratch::EncodeScratch(EncodeScratch&&) noexcept = default;
EncodeScratch& EncodeScratch::operator=(EncodeScratch&&) noexcept = default;
EncodeScratch::~EncodeScratch() = default;

Result<EncodedDelta> EncodeDelta(const EncodeRequest& request, const Kernels& kernels, ThreadPool& pool,
                                 EncodeScratch& scratch) {
  std::vector<Worker>& workers = scratch.workers().all;
  if (!workers.empty() && &workers[0].encoder.kernels() != &kernels) workers.clear();
  while (workers.size() < pool.threads()) workers.emplace_back(kernels);
  Result<EncodedDelta> delta = DeltaEncoder(request, kernels, pool, workers).Encode();
  for (Worker& worker : workers) worker.Reset();
  return delta;
}

Result<EncodedDelta> EncodeDelta(const EncodeRequest& request, const Kernels& kernels, ThreadPool& pool) {
  EncodeScratch scratch;
  return EncodeDelta(request, kernels, pool, scratch);
}

void EncodeScratch::Reuse(std::vector<UndoBits> kept) {
  std::vector<Worker>& workers = workers_->all;
  for (std::size_t i = 0; i < std::min(kept.size(), workers.size()); ++i) {
    workers[i].kept = std::move(kept[i]);
    workers[i].kept.Clear();
  }
}

void RestoreReplaced(std::span<const ReplacedUnits> replaced, std::span<const EncodeEntry> entries,
                     const Layout& layout_after) {
  for (const ReplacedUnits& units : replaced) {
    const EncodeEntry& entry = entries[units.entry];
    WithUnit(UnitBytes(layout_after.tensors()[entry.tensor].dtype), [&]<typename Unit>() {
      std::uint8_t* base = entry.update + units.first_unit * sizeof(Unit);
      for (std::size_t k = 0; k < units.positions.size(); ++k) {
        StoreUnit<Unit>(base, units.positions[k], LoadUnit<Unit>(units.old_units.data(), k));
      }
    });
  }
}

}  // namespace weightwire
