#include "codec/decoder.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "base/bytes.h"
#include "base/memory_pool.h"
#include "codec/gap_tile.h"
#include "codec/staged_builder.h"
#include "codec/state.h"
#include "codec/tile_encoder.h"
#include "codec/units.h"
#include "tensor/json.h"

namespace weightwire {

namespace {

// Tiles that one job decodes: of large tiles no more than there are lanes, for a job may have to copy their base.
constexpr std::size_t kTilesPerJob = 4 * kLanes;
constexpr std::uint64_t kJobUnits = 1 << 21;
std::uint64_t TilesPerJob(int tile_log2) {
  return std::clamp<std::uint64_t>(kJobUnits >> tile_log2, kLanes, kTilesPerJob);
}
// Jobs whose base need not be copied are decoded together up to this many tiles, which keeps all lanes busy to near the
// end, or units.
constexpr std::uint64_t kTilesTogether = 4 * kLanes;
constexpr std::uint64_t kUnitsTogether = 1 << 24;
// Changes that a tile has room for at the least.
constexpr std::uint64_t kLeastRoom = 256;
// Units of the tiles that are decoded again with room for all their units to change.
constexpr std::size_t kLargeRoomUnits = 1 << 20;
// Units that one job of a whole entry compares.
constexpr std::uint64_t kWholePieceUnits = 1 << 20;

Error Damaged(const std::string& what) { return {ErrorCode::kCorrupt, "the delta is damaged: " + what}; }
Error OtherBase(const std::string& what) {
  return {ErrorCode::kMismatch, what + "; the delta was made for another base, and nothing was changed"};
}

struct Entry {
  const IndexEntry* index = nullptr;
  std::span<const std::uint8_t> payload;
  std::optional<BoxMap> map;
  std::size_t origin = 0;  // in the layout before
  bool is_new = false;     // the base has no such tensor
  std::shared_ptr<const ExpandedTables> tables;
  std::vector<std::uint64_t> tile_offsets;  // in the payload
};

// A piece of an entry, and what it gave.
struct Job {
  std::size_t entry = 0;
  std::uint64_t first_unit = 0;  // of the box
  std::uint64_t unit_count = 0;
  std::vector<StagedChunk> chunks;
  Digest digest_change;
};

// Memory that is written before it is read, and so need not be filled first.
template <typename T>
class Scratch {
 public:
  // Room for `size` at least; what was in it may be lost.
  T* Room(std::size_t size) {
    if (size > size_) {
      memory_ = std::make_unique_for_overwrite<T[]>(size);
      size_ = size;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<T[]> memory_;
  std::size_t size_ = 0;
};

// Scratch memory of one thread.
struct Worker {
  std::vector<std::uint8_t> base;
  std::vector<std::uint8_t> run;
  std::vector<SparseTile> tiles;
  Scratch<std::uint32_t> times;
  Scratch<std::uint8_t> changes;
  Scratch<std::uint8_t> new_units;
  std::unique_ptr<Worker> for_large_tiles;

  Worker& ForLargeTiles() {
    if (for_large_tiles == nullptr) for_large_tiles = std::make_unique<Worker>();
    return *for_large_tiles;
  }
};

// Memory of a worker for what tiles decode to.
class TileRoom {
 public:
  TileRoom(Worker& worker, std::size_t units, int unit_bytes)
      : next_(worker.changes.Room(units * RecordBytes(unit_bytes))), unit_bytes_(unit_bytes) {}

  // The next room, for tile.max_changed units.
  void Give(SparseTile& tile) {
    tile.changes = next_;
    next_ += tile.max_changed * RecordBytes(unit_bytes_);
  }

 private:
  std::uint8_t* next_;
  int unit_bytes_;
};

class Stager {
 public:
  Stager(std::span<const DeltaFile> parts, const std::optional<StateDigests>& promised, const StateView& base,
         const Kernels& kernels, ThreadPool& pool)
      : parts_(parts), promised_(promised), base_(base), kernels_(kernels), pool_(pool), workers_(pool.threads()) {}

  Result<std::shared_ptr<const StagedChange>> Run() {
    WW_RETURN_IF_ERROR(CheckBase());
    WW_RETURN_IF_ERROR(PrepareEntries());
    WW_RETURN_IF_ERROR(CheckDigestsBefore());
    ReserveMemory();
    WW_RETURN_IF_ERROR(RunJobs());
    return Collect();
  }

 private:
  [[nodiscard]] const TensorSpec& SpecOf(const Entry& entry) const { return after_->tensors()[entry.index->tensor]; }

  Status CheckBase() {
    for (const DeltaFile& part : parts_) {
      const DeltaIndex& index = part.index();
      if (index.layout_hash != base_.layout().hash()) {
        return OtherBase("the names, types or shapes of the base's tensors are not those the delta applies to");
      }
      if (index.layout_change != parts_.front().index().layout_change) {
        return Damaged("its parts do not agree on the layout after it");
      }
      if (parts_.size() > 1 && index.state.has_value()) return Damaged("one of its parts is a delta of its own");
    }
    if (promised_.has_value() && StateDigest(base_.layout(), base_.digests()) != promised_->before) {
      return OtherBase("the base's bits are not those the delta applies to (" + DescribeDifference() + ")");
    }
    WW_TRY(Layout after, ApplyLayoutChange(base_.layout(), parts_.front().index().layout_change));
    after_ = std::make_shared<const Layout>(std::move(after));
    return Ok();
  }

  // The first touched tensor whose digest differs, for the error.
  [[nodiscard]] std::string DescribeDifference() const {
    for (const IndexEntry& entry : parts_.front().index().entries) {
      if (parts_.front().index().layout_change.has_value() || entry.tensor >= base_.layout().size() ||
          entry.box.has_value())
        break;
      if (base_.digests()[entry.tensor] != entry.before) {
        return "tensor " + Quoted(base_.layout().tensors()[entry.tensor].name) + " differs";
      }
    }
    return "a tensor that the delta does not touch differs";
  }

  Status PrepareEntries() {
    for (const DeltaFile& part : parts_) {
      // Tables by set, width and scale: entries that agree in them share them.
      std::map<std::tuple<std::size_t, int, int>, std::shared_ptr<const ExpandedTables>> expanded;
      for (std::size_t i = 0; i < part.index().entries.size(); ++i) {
        WW_TRY(Entry entry, PrepareEntry(part, i));
        if (HasTables(entry.index->mode)) {
          auto& tables = expanded[{entry.index->table_set, entry.map->unit_bytes(), entry.index->scale}];
          if (tables == nullptr) {
            TableSet set = part.sets()[entry.index->table_set];
            set.unit_bits = 8 * entry.map->unit_bytes();
            WW_RETURN_IF_ERROR(set.CheckFits());
            tables = std::make_shared<const ExpandedTables>(set, entry.index->scale);
          }
          entry.tables = tables;
        }
        entries_.push_back(std::move(entry));
      }
    }
    std::stable_sort(entries_.begin(), entries_.end(),
                     [](const Entry& a, const Entry& b) { return a.index->tensor < b.index->tensor; });
    return CheckBoxes();
  }

  Result<Entry> PrepareEntry(const DeltaFile& part, std::size_t i) const {
    Entry entry;
    entry.index = &part.index().entries[i];
    entry.payload = part.payload(i);
    if (entry.index->tensor >= after_->size()) return Damaged("an entry names a tensor that is not there");
    const TensorSpec& spec = SpecOf(entry);
    if (entry.index->box.has_value()) {
      WW_TRY(entry.map, BoxMap::Of(spec, *entry.index->box));
      // Of all of a tensor, too: whether there is a box must not change what its rows have to be.
      if (IsPacked(spec.dtype) && spec.shape.back() * static_cast<std::uint64_t>(BitsPer(spec.dtype)) % 8 != 0) {
        return Damaged("there is a box of " + Quoted(spec.name) + ", whose rows do not fill whole bytes");
      }
    } else {
      entry.map = BoxMap(spec);
    }
    const std::optional<std::size_t> origin = OriginOf(entry.index->tensor);
    entry.is_new = !origin.has_value();
    entry.origin = origin.value_or(0);
    if (entry.is_new && entry.index->box.has_value()) {
      return Damaged(Quoted(spec.name) + " is new, but comes as a box");
    }
    if (entry.index->mode != EntryMode::kWhole) {
      if (entry.is_new) return Damaged(Quoted(spec.name) + " is new, but coded as a change");
      WW_RETURN_IF_ERROR(PrepareTiles(entry));
    } else if (entry.payload.size() != entry.map->unit_count() * static_cast<std::uint64_t>(entry.map->unit_bytes())) {
      return Damaged("the data of " + Quoted(spec.name) + " has the wrong size");
    }
    return entry;
  }

  // The base's tensor that a tensor of the layout after continues.
  [[nodiscard]] std::optional<std::size_t> OriginOf(std::size_t tensor) const {
    return base_.layout().FindSame(after_->tensors()[tensor]);
  }

  static Status PrepareTiles(Entry& entry) {
    const int log2 = entry.index->tile_log2;
    const std::uint64_t tiles = (entry.map->unit_count() + (std::uint64_t{1} << log2) - 1) >> log2;
    if (entry.index->tile_bytes.size() != tiles) return Damaged("an entry has the wrong number of tiles");
    if (entry.index->changed > entry.map->unit_count()) return Damaged("an entry has more changes than units");
    std::uint64_t offset = 0;
    for (const std::uint32_t size : entry.index->tile_bytes) {
      entry.tile_offsets.push_back(offset);
      offset += size;
    }
    return Ok();
  }

  // Boxes of one tensor must not overlap; each new tensor must be there.
  Status CheckBoxes() const {
    for (std::size_t begin = 0; begin < entries_.size();) {
      std::size_t end = begin + 1;
      while (end < entries_.size() && entries_[end].index->tensor == entries_[begin].index->tensor) ++end;
      const auto name = [&] { return Quoted(SpecOf(entries_[begin]).name); };
      if (end - begin > kMaxBoxesPerTensor) {
        return Error(ErrorCode::kLimit, "the delta has " + std::to_string(end - begin) + " boxes of " + name() +
                                            ", above the limit of " + std::to_string(kMaxBoxesPerTensor));
      }
      std::vector<const Box*> boxes;
      for (std::size_t i = begin; i < end && end - begin > 1; ++i) {
        if (entries_[i].map->is_whole_tensor()) return Damaged(name() + " is there twice");
        boxes.push_back(&*entries_[i].index->box);
      }
      if (AnyOverlap(boxes)) return Damaged("boxes of " + name() + " overlap");
      begin = end;
    }
    std::vector<bool> delivered(after_->size(), false);
    for (const Entry& entry : entries_) delivered[entry.index->tensor] = true;
    for (std::size_t i = 0; i < after_->size(); ++i) {
      if (delivered[i] || OriginOf(i).has_value()) continue;
      const std::string name = Quoted(after_->tensors()[i].name);
      if (promised_.has_value() || parts_.size() > 1) return Damaged("new tensor " + name + " has no data");
      // Another part may have it. There is nothing wrong with this one, but a state without a tensor is none.
      return Error(ErrorCode::kUnsupported, "this is a part of a delta that leaves the data of new tensor " + name +
                                                " to another part, and cannot be applied alone");
    }
    return Ok();
  }

  // Digests of whole tensors are known. Those of boxes are computed, unless the boxes make up the tensor: then only
  // their sum need be right.
  Status CheckDigestsBefore() {
    std::map<std::size_t, std::pair<Digest, std::uint64_t>> sums;
    for (const Entry& entry : entries_) {
      auto& [digest, units] = sums[entry.index->tensor];
      digest += entry.index->before;
      units += entry.map->unit_count();
    }
    for (const Entry& entry : entries_) {
      const auto name = [&] { return Quoted(SpecOf(entry).name); };
      if (entry.is_new) {
        if (entry.index->before != Digest{}) return Damaged(name() + " is new, but has a digest before");
        continue;
      }
      const auto& [digest, units] = sums[entry.index->tensor];
      const std::uint64_t all = base_.layout().unit_count(entry.origin);
      const bool fits =
          units == all ? digest == base_.digests()[entry.origin] : BoxDigest(entry) == entry.index->before;
      if (!fits) return OtherBase("tensor " + name() + " of the base has not the bits the delta applies to");
    }
    return Ok();
  }

  Digest BoxDigest(const Entry& entry) {
    Digest digest;
    std::vector<std::uint8_t> scratch;
    const auto width = static_cast<std::uint64_t>(entry.map->unit_bytes());
    // In pieces: seen through staged changes, each is a copy.
    for (std::uint64_t first = 0; first < entry.map->unit_count(); first += kWholePieceUnits) {
      const std::uint64_t piece = std::min(kWholePieceUnits, entry.map->unit_count() - first);
      entry.map->ForEachRun(first, piece, [&](std::uint64_t, std::uint64_t unit, std::uint64_t count) {
        digest += DigestOfRun(base_.Units(entry.origin, unit, count, scratch), unit * width, kernels_);
      });
    }
    return digest;
  }

  // The base's units [first, first + count) of the box, one after another.
  const std::uint8_t* BaseUnits(const Entry& entry, std::uint64_t first, std::uint64_t count, Worker& worker) const {
    const auto width = static_cast<std::size_t>(entry.map->unit_bytes());
    if (entry.map->is_contiguous()) {
      const std::uint64_t unit = entry.map->RunStart(0) + first;
      return base_.Units(entry.origin, unit, count, worker.base).data();
    }
    worker.base.resize(count * width);
    entry.map->ForEachRun(first, count, [&](std::uint64_t at, std::uint64_t unit, std::uint64_t size) {
      const auto run = base_.Units(entry.origin, unit, size, worker.run);
      std::copy(run.begin(), run.end(), worker.base.begin() + static_cast<std::ptrdiff_t>((at - first) * width));
    });
    return worker.base.data();
  }

  // Where entries' numbers of changes say how much room they need, all of it is taken at once.
  void ReserveMemory() {
    std::size_t bytes = 0;
    for (const Entry& entry : entries_) {
      const bool known = entry.index->mode == EntryMode::kSparse || entry.index->mode == EntryMode::kGaps;
      if (!known || !entry.map->is_contiguous()) continue;
      const auto unit_bytes = static_cast<std::size_t>(entry.map->unit_bytes());
      bytes += entry.index->changed * (sizeof(std::uint32_t) + 2 * unit_bytes) +
               JobCount(entry) * 3 * MemoryPool::Rounded(1);
    }
    memory_ = MemoryPool::Make(bytes);
  }

  static std::uint64_t JobUnits(const Entry& entry) {
    const int log2 = entry.index->tile_log2;
    return entry.index->mode == EntryMode::kWhole ? kWholePieceUnits : TilesPerJob(log2) << log2;
  }
  static std::uint64_t JobCount(const Entry& entry) {
    return (entry.map->unit_count() + JobUnits(entry) - 1) / JobUnits(entry);
  }

  Status RunJobs() {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      const std::uint64_t step = JobUnits(entry);
      for (std::uint64_t first = 0; first < entry.map->unit_count(); first += step) {
        jobs_.push_back({i, first, std::min(step, entry.map->unit_count() - first), {}, {}});
      }
    }
    const std::vector<std::span<Job>> together = JobsTogether();
    std::atomic<bool> damaged = false;
    pool_.ParallelFor(together.size(), [&](std::size_t i, std::size_t worker) {
      if (damaged.load(std::memory_order_relaxed)) return;
      if (!RunTogether(together[i], workers_[worker])) damaged.store(true, std::memory_order_relaxed);
    });
    if (damaged.load()) return Damaged("a tile does not decode to its end");
    return Ok();
  }

  // Jobs of sparse entries that follow each other in groups, the others each on its own.
  std::vector<std::span<Job>> JobsTogether() {
    std::vector<std::span<Job>> groups;
    const auto alone = [&](const Job& job) {
      const Entry& entry = entries_[job.entry];
      return entry.index->mode != EntryMode::kSparse || !entry.map->is_contiguous() ||
             base_.InPlace(entry.origin).empty();
    };
    for (std::size_t begin = 0; begin < jobs_.size();) {
      std::size_t end = begin + 1;
      const Entry& first = entries_[jobs_[begin].entry];
      const auto tiles = [&](const Job& job) { return job.unit_count >> entries_[job.entry].index->tile_log2; };
      std::uint64_t tile_count = tiles(jobs_[begin]);
      std::uint64_t unit_count = jobs_[begin].unit_count;
      while (!alone(jobs_[begin]) && end < jobs_.size() && !alone(jobs_[end])) {
        tile_count += tiles(jobs_[end]);
        unit_count += jobs_[end].unit_count;
        if (tile_count > kTilesTogether || unit_count > kUnitsTogether ||
            entries_[jobs_[end].entry].map->unit_bytes() != first.map->unit_bytes())
          break;
        ++end;
      }
      groups.push_back(std::span(jobs_).subspan(begin, end - begin));
      begin = end;
    }
    return groups;
  }

  bool RunTogether(std::span<Job> jobs, Worker& worker) {
    const Entry& entry = entries_[jobs.front().entry];
    return WithUnit(entry.map->unit_bytes(), [&]<typename Unit>() {
      switch (entry.index->mode) {
        case EntryMode::kSparse:
          return DecodeSparseJobs<Unit>(jobs, worker);
        case EntryMode::kGaps:
          return DecodeGapsJob<Unit>(entry, jobs.front(), worker);
        case EntryMode::kDense:
          return DecodeDenseJob<Unit>(entry, jobs.front(), worker);
        default:
          CompareWholeJob<Unit>(entry, jobs.front(), worker);
          return true;
      }
    });
  }

  template <typename Unit>
  bool DecodeSparseJobs(std::span<Job> jobs, Worker& worker) {
    worker.tiles.clear();
    std::size_t room = 0;
    std::uint32_t largest = 0;
    for (const Job& job : jobs) {
      const Entry& entry = entries_[job.entry];
      const IndexEntry& index = *entry.index;
      const std::uint32_t tile_units = 1u << index.tile_log2;
      const std::uint8_t* base = BaseUnits(entry, job.first_unit, job.unit_count, worker);
      largest = std::max(largest, tile_units);
      for (std::uint64_t at = 0; at < job.unit_count; at += tile_units) {
        const std::size_t k = (job.first_unit + at) >> index.tile_log2;
        SparseTile tile;
        tile.base = base + at * sizeof(Unit);
        tile.unit_count = static_cast<std::uint32_t>(std::min<std::uint64_t>(tile_units, job.unit_count - at));
        tile.stream = entry.payload.subspan(entry.tile_offsets[k], index.tile_bytes[k]);
        tile.tables = entry.tables.get();
        // Twice what its share of the payload promises: nearly all tiles have less.
        const double share = static_cast<double>(tile.stream.size()) / static_cast<double>(1 + entry.payload.size());
        const auto likely = static_cast<std::uint64_t>(2 * share * static_cast<double>(index.changed)) + kLeastRoom;
        tile.max_changed = static_cast<std::uint32_t>(std::min<std::uint64_t>(tile.unit_count, likely));
        room += tile.max_changed;
        worker.tiles.push_back(tile);
      }
    }
    TileRoom rooms(worker, room, sizeof(Unit));
    for (SparseTile& tile : worker.tiles) rooms.Give(tile);
    kernels_.decode_sparse(worker.tiles, sizeof(Unit), worker.times.Room(TimesRoom(largest)));
    std::span<SparseTile> left = worker.tiles;
    for (Job& job : jobs) {
      const int log2 = entries_[job.entry].index->tile_log2;
      const std::size_t count = (job.unit_count + (std::uint64_t{1} << log2) - 1) >> log2;
      if (!StageTiles<Unit>(job, left.first(count), worker)) return false;
      left = left.subspan(count);
    }
    return true;
  }

  // The changes of a job's tiles, once they are decoded.
  template <typename Unit>
  bool StageTiles(Job& job, std::span<SparseTile> tiles, Worker& worker) {
    const Entry& entry = entries_[job.entry];
    const int log2 = entry.index->tile_log2;
    // Those for whose changes there was no room again, in groups for which there is. A group's results last until the
    // next one is decoded.
    std::vector<std::size_t> large;
    for (std::size_t k = 0; k < tiles.size(); ++k) {
      if (!tiles[k].intact && tiles[k].max_changed < tiles[k].unit_count) large.push_back(k);
    }
    const std::size_t group = std::max<std::size_t>(1, kLargeRoomUnits >> log2);
    const auto decode_group = [&](std::size_t first) {
      const std::size_t size = std::min(group, large.size() - first);
      std::vector<SparseTile> again;
      TileRoom rooms(worker.ForLargeTiles(), size << log2, sizeof(Unit));
      for (std::size_t i = 0; i < size; ++i) {
        again.push_back(tiles[large[first + i]]);
        again.back().max_changed = again.back().unit_count;
        rooms.Give(again.back());
      }
      kernels_.decode_sparse(again, sizeof(Unit), worker.times.Room(TimesRoom(1u << log2)));
      for (std::size_t i = 0; i < size; ++i) tiles[large[first + i]] = again[i];
    };
    for (std::size_t first = 0; first < large.size(); first += group) decode_group(first);
    std::size_t changed = 0;
    for (const SparseTile& tile : tiles) {
      if (!tile.intact) return false;
      changed += tile.changed;
    }
    if (changed > entry.index->changed) return false;
    ChunkWriter<Unit> writer(entry, job, changed, kernels_, entry.map->is_contiguous() ? memory_ : nullptr);
    std::size_t next_large = 0;
    for (std::size_t k = 0; k < tiles.size(); ++k) {
      if (next_large < large.size() && large[next_large] == k) {
        if (next_large % group == 0 && large.size() > group) decode_group(next_large);
        ++next_large;
      }
      writer.AddTile(k << log2, tiles[k]);
    }
    writer.Finish();
    return true;
  }

  template <typename Unit>
  bool DecodeGapsJob(const Entry& entry, Job& job, Worker& worker) {
    const int log2 = entry.index->tile_log2;
    const std::size_t first_tile = job.first_unit >> log2;
    const std::size_t count = (job.unit_count + (std::uint64_t{1} << log2) - 1) >> log2;
    std::array<GapTile, kTilesPerJob> tiles;
    std::size_t changed = 0;
    for (std::size_t k = 0; k < count; ++k) {
      GapTile& tile = tiles[k];
      tile.begin = static_cast<std::uint32_t>(k << log2);
      tile.end = static_cast<std::uint32_t>(std::min<std::uint64_t>((k + 1) << log2, job.unit_count));
      const auto stream = OpenGapStream(
          entry.payload.subspan(entry.tile_offsets[first_tile + k], entry.index->tile_bytes[first_tile + k]),
          tile.end - tile.begin);
      if (!stream.has_value()) return false;
      tile.stream = *stream;
      changed += stream->changed;
    }
    if (changed > entry.index->changed) return false;
    if (changed == 0) return true;
    // The numbers of changes are known, so they are decoded to where they stay, if one chunk can hold them.
    StagedChunk chunk = EmptyChunk(entry.map->is_contiguous() ? memory_ : nullptr);
    chunk.offsets.resize(changed);
    chunk.new_units.resize(changed * sizeof(Unit));
    chunk.old_units.resize(changed * sizeof(Unit));
    const std::uint8_t* base = BaseUnits(entry, job.first_unit, job.unit_count, worker);
    chunk.first_unit = entry.map->RunStart(0) + job.first_unit;
    DigestOfChanges digest(kernels_);
    const auto add_to_digest = [&](const GapTile& tile, std::uint32_t from, std::uint32_t size) {
      digest.Changes<Unit>(chunk.first_unit, {tile.positions + from, size}, tile.old_units + from * sizeof(Unit),
                           tile.new_units + from * sizeof(Unit));
    };
    const GapFollowUp follow_up(add_to_digest);
    std::size_t first = 0;
    for (GapTile& tile : std::span(tiles).first(count)) {
      tile.base = base;
      if (entry.map->is_contiguous()) tile.follow_up = &follow_up;
      tile.positions = chunk.offsets.data() + first;
      tile.new_units = chunk.new_units.data() + first * sizeof(Unit);
      tile.old_units = chunk.old_units.data() + first * sizeof(Unit);
      first += tile.stream.changed;
    }
    kernels_.decode_gaps(std::span(tiles).first(count), sizeof(Unit));
    for (const GapTile& tile : std::span(tiles).first(count)) {
      if (!tile.intact) return false;
    }
    if (!entry.map->is_contiguous()) {
      ChunkWriter<Unit> writer(entry, job, changed, kernels_);
      for (std::size_t k = 0; k < changed; ++k) {
        writer.Add(chunk.offsets[k], LoadUnit<Unit>(chunk.old_units.data(), k),
                   LoadUnit<Unit>(chunk.new_units.data(), k));
      }
      writer.Finish();
      return true;
    }
    job.digest_change = digest.Finish();
    job.chunks.push_back(std::move(chunk));
    return true;
  }

  template <typename Unit>
  bool DecodeDenseJob(const Entry& entry, Job& job, Worker& worker) {
    const int log2 = entry.index->tile_log2;
    const std::uint8_t* base = BaseUnits(entry, job.first_unit, job.unit_count, worker);
    std::uint8_t* new_units = worker.new_units.Room(job.unit_count * sizeof(Unit));
    const std::size_t first_tile = job.first_unit >> log2;
    for (std::uint64_t at = 0; at < job.unit_count; at += std::uint64_t{1} << log2) {
      const std::size_t tile = first_tile + (at >> log2);
      const auto count = static_cast<std::uint32_t>(std::min(std::uint64_t{1} << log2, job.unit_count - at));
      const auto stream = entry.payload.subspan(entry.tile_offsets[tile], entry.index->tile_bytes[tile]);
      if (!DecodeDenseTile(stream, base + at * sizeof(Unit), count, sizeof(Unit), *entry.tables,
                           new_units + at * sizeof(Unit))) {
        return false;
      }
    }
    StageDifferences<Unit>(entry, job, base, new_units);
    return true;
  }

  template <typename Unit>
  void CompareWholeJob(const Entry& entry, Job& job, Worker& worker) {
    const std::uint8_t* new_units = entry.payload.data() + job.first_unit * sizeof(Unit);
    if (entry.is_new) {
      job.digest_change =
          DigestOfRun({new_units, job.unit_count * sizeof(Unit)}, job.first_unit * sizeof(Unit), kernels_);
      return;
    }
    StageDifferences<Unit>(entry, job, BaseUnits(entry, job.first_unit, job.unit_count, worker), new_units);
  }

  template <typename Unit>
  void StageDifferences(const Entry& entry, Job& job, const std::uint8_t* base, const std::uint8_t* new_units) {
    ChunkWriter<Unit> writer(entry, job, 0, kernels_);
    std::array<std::uint16_t, kChunkUnits + 64> positions;
    for (std::uint64_t at = 0; at < job.unit_count; at += kChunkUnits) {
      const std::uint64_t offset = at * sizeof(Unit);
      const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(kChunkUnits, job.unit_count - at));
      const std::uint32_t found =
          kernels_.find_changed(base + offset, new_units + offset, count, sizeof(Unit), positions.data());
      for (std::uint32_t k = 0; k < found; ++k) {
        writer.Add(at + positions[k], LoadUnit<Unit>(base, at + positions[k]),
                   LoadUnit<Unit>(new_units, at + positions[k]));
      }
    }
    writer.Finish();
  }

  static StagedChunk EmptyChunk(const std::shared_ptr<MemoryPool>& pool) {
    const UnfilledAllocator<std::uint8_t> memory(pool);
    return {0, UnfilledVector<std::uint32_t>(memory), UnfilledVector<std::uint8_t>(memory),
            UnfilledVector<std::uint8_t>(memory)};
  }

  // Turns units of a job into chunks of the tensor, and adds up what they do to its digest.
  template <typename Unit>
  class ChunkWriter {
   public:
    // `expected` is how many units will come, or 0 if that is not known. A pool is for one chunk of so many.
    ChunkWriter(const Entry& entry, Job& job, std::size_t expected, const Kernels& kernels,
                const std::shared_ptr<MemoryPool>& pool = nullptr)
        : map_(*entry.map),
          job_(job),
          expected_(expected),
          kernels_(kernels),
          chunk_(EmptyChunk(pool)),
          digest_(kernels) {
      NextRun(job.first_unit);
    }

    // `at` counts from the job's first unit, ascending.
    void Add(std::uint64_t at, Unit old_unit, Unit new_unit) {
      const std::uint64_t box_unit = job_.first_unit + at;
      if (box_unit >= run_end_) [[unlikely]]
        NextRun(box_unit);
      const std::uint64_t unit = box_unit + to_tensor_;
      MakeRoom(unit, 1, 1);
      digest_.Change<Unit>(unit, old_unit, new_unit);
      chunk_.offsets[count_] = static_cast<std::uint32_t>(unit - chunk_.first_unit);
      StoreUnit<Unit>(chunk_.old_units.data(), count_, old_unit);
      StoreUnit<Unit>(chunk_.new_units.data(), count_, new_unit);
      ++count_;
    }

    // All changes of a tile, which begins at `at`.
    void AddTile(std::uint64_t at, const SparseTile& tile) {
      if (tile.changed == 0) return;
      const std::uint64_t box_unit = job_.first_unit + at;
      if (box_unit < run_begin_ || box_unit + tile.unit_count > run_end_) {
        for (std::uint32_t c = 0; c < tile.changed; ++c) {
          const TileChange<Unit> change = LoadChange<Unit>(tile.changes, c);
          Add(at + change.position, change.old_unit, change.new_unit);
        }
        return;
      }
      // All of it within one run of the tensor.
      const std::uint64_t unit = box_unit + to_tensor_;
      MakeRoom(unit, tile.unit_count, tile.changed);
      const auto offset = static_cast<std::uint32_t>(unit - chunk_.first_unit);
      std::uint32_t* offsets = chunk_.offsets.data() + count_;
      std::uint8_t* old_units = chunk_.old_units.data() + count_ * sizeof(Unit);
      std::uint8_t* new_units = chunk_.new_units.data() + count_ * sizeof(Unit);
      if constexpr (sizeof(Unit) == 2) {
        kernels_.split_shorts(tile.changes, tile.changed, offset, offsets, old_units, new_units);
      } else {
        for (std::uint32_t c = 0; c < tile.changed; ++c) {
          const TileChange<Unit> change = LoadChange<Unit>(tile.changes, c);
          offsets[c] = offset + change.position;
          StoreUnit<Unit>(old_units, c, change.old_unit);
          StoreUnit<Unit>(new_units, c, change.new_unit);
        }
      }
      digest_.Changes<Unit>(chunk_.first_unit, {offsets, tile.changed}, old_units, new_units);
      count_ += tile.changed;
    }

    void Finish() {
      Flush();
      job_.digest_change = digest_.Finish();
    }

   private:
    // For `changed` more in units [unit, unit + units), which follow on what there is.
    void MakeRoom(std::uint64_t unit, std::uint32_t units, std::size_t changed) {
      constexpr std::uint64_t kMaxOffset = 0xffffffff;
      if (count_ != 0 && unit + units - 1 - chunk_.first_unit > kMaxOffset) [[unlikely]]
        Flush();
      if (count_ == 0) chunk_.first_unit = unit;
      if (count_ + changed > chunk_.offsets.size()) [[unlikely]] {
        Resize(std::max(expected_ > count_ ? expected_ : std::max<std::size_t>(16, 2 * count_), count_ + changed));
      }
    }

    void Resize(std::size_t count) {
      chunk_.offsets.resize(count);
      chunk_.old_units.resize(count * sizeof(Unit));
      chunk_.new_units.resize(count * sizeof(Unit));
    }

    void NextRun(std::uint64_t box_unit) {
      const std::uint64_t run = box_unit / map_.run_units();
      to_tensor_ = map_.RunStart(run) - run * map_.run_units();  // modulo 2^64
      run_begin_ = run * map_.run_units();
      run_end_ = run_begin_ + map_.run_units();
    }

    void Flush() {
      if (count_ == 0) return;
      Resize(count_);
      if (expected_ == 0) {
        chunk_.offsets.shrink_to_fit();
        chunk_.old_units.shrink_to_fit();
        chunk_.new_units.shrink_to_fit();
      }
      job_.chunks.push_back(std::move(chunk_));
      chunk_ = {};
      expected_ -= std::min(expected_, count_);
      count_ = 0;
    }

    const BoxMap& map_;
    Job& job_;
    std::size_t expected_;
    const Kernels& kernels_;
    StagedChunk chunk_;
    std::size_t count_ = 0;
    std::uint64_t to_tensor_ = 0;
    std::uint64_t run_begin_ = 0;
    std::uint64_t run_end_ = 0;
    DigestOfChanges digest_;
  };

  Result<std::shared_ptr<const StagedChange>> Collect() {
    StagedChangeBuilder builder(base_.shared_layout(), after_, base_.digests());
    std::vector<Digest> digests(after_->size());
    for (std::size_t i = 0; i < after_->size(); ++i) {
      const std::optional<std::size_t> origin = OriginOf(i);
      if (origin.has_value()) digests[i] = base_.digests()[*origin];
    }
    // By tensor, as they come from the jobs; boxes come in any order, and their runs interleave.
    struct Found {
      const Entry* entry;  // the last of its tensor
      std::vector<StagedChunk> chunks;
    };
    std::vector<Found> found;
    std::size_t job = 0;
    std::vector<StagedChunk> chunks;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      Digest change;
      std::uint64_t changed = 0;
      for (; job < jobs_.size() && jobs_[job].entry == i; ++job) {
        change += jobs_[job].digest_change;
        for (StagedChunk& chunk : jobs_[job].chunks) {
          changed += chunk.offsets.size();
          chunks.push_back(std::move(chunk));
        }
      }
      if (entry.index->before + change != entry.index->after) {
        return Damaged("the new bits of " + Quoted(SpecOf(entry).name) + " are not those its digest was made of");
      }
      if (entry.index->mode != EntryMode::kWhole && changed != entry.index->changed) {
        return Damaged(Quoted(SpecOf(entry).name) + " has another number of changes than promised");
      }
      digests[entry.index->tensor] += change;
      if (i + 1 == entries_.size() || entries_[i + 1].index->tensor != entry.index->tensor) {
        if (entry.is_new || !chunks.empty()) found.push_back({&entry, std::move(chunks)});
        chunks.clear();
      }
    }
    if (promised_.has_value() && StateDigest(*after_, digests) != promised_->after) {
      return Damaged("the state after the change is not the promised one");
    }
    pool_.ParallelFor(found.size(), [&](std::size_t i, std::size_t) {
      const auto unit_bytes = static_cast<std::size_t>(found[i].entry->map->unit_bytes());
      found[i].chunks = InOrder(std::move(found[i].chunks), unit_bytes);
    });
    for (Found& tensor : found) {
      const Entry& entry = *tensor.entry;
      if (entry.is_new) {
        builder.AddNew(entry.index->tensor, entry.map->unit_bytes(), {entry.payload.begin(), entry.payload.end()});
      } else {
        builder.AddChanged(entry.index->tensor, entry.map->unit_bytes(), std::move(tensor.chunks));
      }
    }
    return std::make_shared<const StagedChange>(builder.Finish(std::move(digests)));
  }

  std::span<const DeltaFile> parts_;
  std::optional<StateDigests> promised_;
  const StateView& base_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  std::vector<Worker> workers_;
  std::shared_ptr<const Layout> after_;
  std::vector<Entry> entries_;
  std::vector<Job> jobs_;
  std::shared_ptr<MemoryPool> memory_;  // for what is staged; none if that is little
};

}  // namespace

Result<std::shared_ptr<const StagedChange>> StageDelta(const DeltaFile& file, const StateView& base,
                                                       const Kernels& kernels, ThreadPool& pool) {
  return Stager({&file, 1}, file.index().state, base, kernels, pool).Run();
}

Result<std::shared_ptr<const StagedChange>> StageParts(std::span<const DeltaFile> parts,
                                                       const std::optional<StateDigests>& promised,
                                                       const StateView& base, const Kernels& kernels,
                                                       ThreadPool& pool) {
  if (parts.empty()) return Error(ErrorCode::kInvalidArgument, "a delta must have at least one part");
  return Stager(parts, promised, base, kernels, pool).Run();
}

Result<Layout> LayoutForDelta(const DeltaFile& file, const Layout& checkpoint) {
  // Names that the delta knows as aliases are not tensors of its layout, even if the checkpoint has them.
  const Aliases& aliases = file.index().aliases;
  std::vector<TensorSpec> tensors;
  for (const TensorSpec& spec : checkpoint.tensors()) {
    if (!aliases.contains(spec.name)) tensors.push_back(spec);
  }
  // Further names of the checkpoint's ties: where the delta keeps another name of a tie than the checkpoint does, that
  // one is a tensor; and all of them are for a delta that knows of no tie.
  std::vector<TensorSpec> kept_otherwise = tensors;
  std::vector<TensorSpec> untied = tensors;
  for (const auto& [alias, kept] : checkpoint.aliases()) {
    if (aliases.contains(alias)) continue;
    TensorSpec spec = checkpoint.tensors()[*checkpoint.Find(kept)];
    spec.name = alias;
    if (const auto at = aliases.find(kept); at != aliases.end() && at->second == alias) kept_otherwise.push_back(spec);
    untied.push_back(std::move(spec));
  }
  for (std::vector<TensorSpec>* names : {&kept_otherwise, &untied}) {
    Result<Layout> layout = Layout::Make(std::move(*names), aliases);
    if (layout.ok() && layout.value().hash() == file.index().layout_hash) return layout;
  }
  return OtherBase("the names, types or shapes of the base's tensors are not those the delta applies to");
}

}  // namespace weightwire
