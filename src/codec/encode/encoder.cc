#include "codec/encode/encoder.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "codec/encode/class_rules.h"
#include "codec/encode/delta_assembly.h"
#include "codec/encode/entry_work.h"
#include "codec/encode/tile_encoder.h"
#include "codec/encode/tile_jobs.h"
#include "codec/format/gap_tile.h"
#include "codec/format/units.h"
#include "tensor/json.h"

namespace weightwire {

namespace {

// Entries are sampled and their tables chosen in groups, which bounds the memory for samples. A group has so many
// entries, or more, if they are small.
constexpr std::size_t kGroupEntries = 512;
constexpr std::size_t kMostGroupEntries = 8 * kGroupEntries;
constexpr std::uint64_t kGroupUnits = std::uint64_t{1} << 21;

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
    std::vector<std::span<EntryWork>> groups;
    for (std::size_t begin = 0; begin < works_.size(); begin += groups.back().size()) {
      groups.push_back(std::span(works_).subspan(begin, GroupSize(begin)));
    }
    for (std::size_t i = 0; i < groups.size(); ++i) {
      // Each group gets its share of the sets that are left, so that none is without.
      WW_RETURN_IF_ERROR(ChooseCodingsOf(groups[i], (kMaxTableSets - sets_.size()) / (groups.size() - i)));
      WW_RETURN_IF_ERROR(EncodeTiles(groups[i]));
    }
    return Assemble();
  }

  // The number of entries of the group that begins there.
  [[nodiscard]] std::size_t GroupSize(std::size_t begin) const {
    std::uint64_t units = 0;
    std::size_t end = begin;
    while (end < works_.size() && end < begin + kMostGroupEntries) {
      units += works_[end].map->unit_count();
      if (end >= begin + kGroupEntries && units > kGroupUnits) break;
      ++end;
    }
    return end - begin;
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
    std::size_t tile_count = 0;
    for (const EntryWork& work : group) tile_count += work.coding.has_value() ? work.TileCount() : 0;
    std::vector<TileResult>& results = results_.emplace_back(tile_count);
    // Many entries share a set, and of those many a scale.
    std::map<std::pair<std::size_t, int>, const ExpandedTables> expanded;
    TileJobs collected;
    std::size_t done = 0;
    for (EntryWork& work : group) {
      if (!work.coding.has_value()) continue;
      const ExpandedTables* tables = nullptr;
      if (HasTables(work.coding->mode)) {
        const auto [set, scale] = std::pair(work.coding->table_set, work.coding->scale);
        tables = &expanded.try_emplace({set, scale}, sets_[set], scale).first->second;
      }
      work.tiles = std::span(results).subspan(done, work.TileCount());
      done += work.tiles.size();
      collected.Add(work, tables);
    }
    const std::vector<TileJob> jobs = std::move(collected).Finish();
    return pool_.TryParallelFor(jobs.size(),
                                [&](std::size_t i, std::size_t worker) { return EncodeJob(jobs[i], worker); });
  }

  // Whether a reader makes all new units of a job before it is encoded, and not bit by bit on the way.
  static bool ReadsAhead(const EncodeEntry& source) {
    return source.reader != nullptr && (!source.has_old || !source.reader->reads_small_batches());
  }

  // Gives tiles of one entry, which follow each other, their new units. What is read ahead goes to `room`, which moves
  // behind it.
  static Status ProvideNewUnits(const EntryWork& work, std::span<TileInput> tiles, std::uint8_t*& room) {
    const EncodeEntry& source = *work.source;
    const auto unit_bytes = static_cast<std::size_t>(work.map->unit_bytes());
    const std::uint64_t first_unit = tiles.front().first_unit;
    const std::uint8_t* new_units = nullptr;
    if (source.reader == nullptr) {
      new_units = source.new_bytes.data() + first_unit * unit_bytes;
    } else if (ReadsAhead(source)) {
      std::uint32_t count = 0;
      for (const TileInput& tile : tiles) count += tile.count;
      WW_RETURN_IF_ERROR(source.reader->Read({&first_unit, 1}, count, room));
      new_units = room;
      room += count * unit_bytes;
    }
    for (TileInput& tile : tiles) {
      if (new_units == nullptr) {
        tile.reader = source.reader;
      } else {
        tile.new_units = new_units + (tile.first_unit - first_unit) * unit_bytes;
      }
    }
    return Ok();
  }

  Status EncodeJob(const TileJob& job, std::size_t worker_index) {
    Worker& worker = workers_[worker_index];
    const std::size_t count = job.tiles.size();
    std::array<TileInput, kLanes> tiles;
    std::size_t read_ahead = 0;
    for (std::size_t k = 0; k < count; ++k) {
      const auto& [work, tile] = job.tiles[k];
      const std::uint64_t begin = std::uint64_t{tile} << work->coding->tile_log2;
      const std::size_t offset = begin * static_cast<std::size_t>(job.unit_bytes);
      tiles[k].first_unit = begin;
      tiles[k].old_units = work->source->has_old ? work->source->old_bytes.data() + offset : nullptr;
      tiles[k].count =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(work->TileUnits(), work->map->unit_count() - begin));
      if (ReadsAhead(*work->source)) read_ahead += tiles[k].count * static_cast<std::size_t>(job.unit_bytes);
    }
    const std::span<TileInput> inputs = std::span(tiles).first(count);
    if (worker.read.size() < read_ahead) worker.read.resize(read_ahead);
    std::uint8_t* room = worker.read.data();
    for (std::size_t first = 0, end = 0; first < count; first = end) {
      while (end < count && job.tiles[end].work == job.tiles[first].work) ++end;
      WW_RETURN_IF_ERROR(ProvideNewUnits(*job.tiles[first].work, inputs.subspan(first, end - first), room));
    }
    const TileDone account = [&](std::size_t k) -> Status {
      return WithUnit(job.unit_bytes, [&]<typename Unit>() {
        return AccountFor<Unit>(*job.tiles[k].work, job.tiles[k].tile, tiles[k], worker, worker.encoder.changes(k));
      });
    };
    if (job.mode == EntryMode::kSparse) {
      WW_RETURN_IF_ERROR(worker.encoder.EncodeSparse(inputs, job.unit_bytes, *job.tables, account));
    } else if (job.mode == EntryMode::kDense) {
      WW_RETURN_IF_ERROR(worker.encoder.EncodeDense(inputs, job.unit_bytes, *job.tables, account));
    } else if (job.has_old) {
      WW_RETURN_IF_ERROR(worker.encoder.Compare(inputs, job.unit_bytes, account));
    } else {
      for (std::size_t k = 0; k < count; ++k) AccountForNew(*job.tiles[k].work, job.tiles[k].tile, tiles[k]);
    }
    for (std::size_t k = 0; k < count; ++k) {
      TileResult& result = job.tiles[k].work->tiles[job.tiles[k].tile];
      if (job.mode == EntryMode::kGaps) {
        const std::size_t offset = worker.streams.size();
        AppendGapStream(worker.encoder.changes(k), job.unit_bytes, worker.streams);
        result.stream = {worker_index, offset, static_cast<std::uint32_t>(worker.streams.size() - offset)};
      } else if (job.mode != EntryMode::kWhole) {
        const std::span<const std::uint8_t> stream = worker.encoder.stream(k);
        result.stream = {worker_index, worker.streams.size(), static_cast<std::uint32_t>(stream.size())};
        worker.streams.insert(worker.streams.end(), stream.begin(), stream.end());
      }
    }
    return Ok();
  }

  // Digest and count of one tile of a tensor that was not there before.
  void AccountForNew(EntryWork& work, std::size_t tile, const TileInput& input) const {
    const std::uint64_t begin = std::uint64_t{tile} << work.coding->tile_log2;
    const auto unit_bytes = static_cast<std::uint64_t>(work.map->unit_bytes());
    TileResult& result = work.tiles[tile];
    result.changed = input.count;
    Digest digest;
    work.map->ForEachStretch(begin, input.count, [&](std::uint64_t at, std::uint64_t tensor_unit, std::uint64_t size) {
      const std::uint8_t* from = input.new_units + (at - begin) * unit_bytes;
      digest += DigestOfRange({from, size * unit_bytes}, tensor_unit * unit_bytes, kernels_);
    });
    result.digest_change = digest;
  }

  // Digest, counts, the base copy and the old bits of one tile.
  template <typename Unit>
  Status AccountFor(EntryWork& work, std::size_t tile, const TileInput& input, Worker& worker,
                    const TileChanges& changes) {
    const std::uint64_t begin = std::uint64_t{tile} << work.coding->tile_log2;
    const std::span<const std::uint32_t> changed = changes.positions;
    TileResult& result = work.tiles[tile];
    result.changed = static_cast<std::uint32_t>(changed.size());
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
    result.digest_change = digest.Finish();
    result.single_steps =
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
  std::deque<std::vector<TileResult>> results_;  // by group: what the works' tiles point to
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
