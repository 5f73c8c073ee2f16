#include "codec/decode/entry_decoder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "codec/decode/dense_tile.h"
#include "codec/format/gap_tile.h"
#include "codec/format/units.h"

namespace weightwire {
namespace {

// Tiles that one job decodes: of large tiles no more than there are lanes, for a job may have to copy their base.
constexpr std::size_t kTilesPerJob = 4 * kLanes;
constexpr std::uint64_t kJobUnits = 1 << 21;
std::uint64_t TilesPerJob(int tile_log2) {
  return std::clamp<std::uint64_t>(kJobUnits >> tile_log2, kLanes, kTilesPerJob);
}
// Changes that a tile has room for at the least.
constexpr std::uint64_t kLeastRoom = 256;
// Units of the tiles that are decoded again with room for all their units to change.
constexpr std::size_t kLargeRoomUnits = 1 << 20;
// Units that one job of a whole entry compares.
constexpr std::uint64_t kWholeJobUnits = 1 << 20;

// Memory for what tiles decode to.
class TileRoom {
 public:
  TileRoom(DecodeScratch& scratch, std::size_t units, int unit_bytes)
      : next_(scratch.changes.Room(units * RecordBytes(unit_bytes))), unit_bytes_(unit_bytes) {}

  // The next room, for tile.max_changed units.
  void Give(SparseTile& tile) {
    tile.changes = next_;
    next_ += tile.max_changed * RecordBytes(unit_bytes_);
  }

 private:
  std::uint8_t* next_;
  int unit_bytes_;
};

}  // namespace

std::uint64_t UnitsPerJob(const DecodeEntry& entry) {
  const int log2 = entry.index->tile_log2;
  return entry.index->mode == EntryMode::kWhole ? kWholeJobUnits : TilesPerJob(log2) << log2;
}

bool EntryDecoder::MayShareLanes(const DecodeEntry& entry) const {
  return entry.index->mode == EntryMode::kSparse && entry.map->is_contiguous();
}

// The base's units [first, first + count) of the box, one after another.
const std::uint8_t* EntryDecoder::BaseUnits(const DecodeEntry& entry, std::uint64_t first, std::uint64_t count,
                                            DecodeScratch& scratch) const {
  const auto width = static_cast<std::size_t>(entry.map->unit_bytes());
  if (entry.map->is_contiguous()) {
    const std::uint64_t unit = entry.map->StretchStart(0) + first;
    return base_.Units(entry.origin, unit, count, scratch.base).data();
  }
  scratch.base.resize(count * width);
  entry.map->ForEachStretch(first, count, [&](std::uint64_t at, std::uint64_t unit, std::uint64_t size) {
    const auto stretch = base_.Units(entry.origin, unit, size, scratch.stretch);
    std::copy(stretch.begin(), stretch.end(), scratch.base.begin() + static_cast<std::ptrdiff_t>((at - first) * width));
  });
  return scratch.base.data();
}

template <typename Unit>
bool EntryDecoder::DecodeSparse(std::span<DecodeJob> jobs, DecodeScratch& scratch) const {
  scratch.tiles.clear();
  scratch.overlays.clear();
  scratch.overlay_ends.clear();
  std::size_t room = 0;
  std::uint32_t largest = 0;
  for (const DecodeJob& job : jobs) {
    const DecodeEntry& entry = entries_[job.entry];
    const IndexEntry& index = *entry.index;
    const std::uint32_t tile_units = 1u << index.tile_log2;
    // A contiguous entry is not copied: the kernel reads memory, and the changes that are staged over it.
    const bool is_contiguous = entry.map->is_contiguous();
    const std::uint64_t in_tensor = is_contiguous ? entry.map->StretchStart(0) + job.first_unit : 0;
    const std::uint8_t* base = is_contiguous ? base_.Below(entry.origin).data() + in_tensor * sizeof(Unit)
                                             : BaseUnits(entry, job.first_unit, job.unit_count, scratch);
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
      scratch.tiles.push_back(tile);
      if (is_contiguous) base_.AddOverlay(entry.origin, in_tensor + at, tile.unit_count, scratch.overlays);
      scratch.overlay_ends.push_back(scratch.overlays.size());
    }
  }
  std::size_t first_list = 0;
  for (std::size_t k = 0; k < scratch.tiles.size(); ++k) {
    const std::size_t end = scratch.overlay_ends[k];
    scratch.tiles[k].overlay = std::span(scratch.overlays).subspan(first_list, end - first_list);
    first_list = end;
  }
  TileRoom rooms(scratch, room, sizeof(Unit));
  for (SparseTile& tile : scratch.tiles) rooms.Give(tile);
  kernels_.decode_sparse(scratch.tiles, sizeof(Unit), scratch.times.Room(TimesRoom(largest)));
  std::span<SparseTile> left = scratch.tiles;
  for (DecodeJob& job : jobs) {
    const int log2 = entries_[job.entry].index->tile_log2;
    const std::size_t count = (job.unit_count + (std::uint64_t{1} << log2) - 1) >> log2;
    if (!StageTiles<Unit>(job, left.first(count), scratch)) return false;
    left = left.subspan(count);
  }
  return true;
}

// The changes of a job's tiles, once they are decoded.
template <typename Unit>
bool EntryDecoder::StageTiles(DecodeJob& job, std::span<SparseTile> tiles, DecodeScratch& scratch) const {
  const DecodeEntry& entry = entries_[job.entry];
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
    TileRoom rooms(scratch.ForLargeTiles(), size << log2, sizeof(Unit));
    for (std::size_t i = 0; i < size; ++i) {
      again.push_back(tiles[large[first + i]]);
      again.back().max_changed = again.back().unit_count;
      rooms.Give(again.back());
    }
    kernels_.decode_sparse(again, sizeof(Unit), scratch.times.Room(TimesRoom(1u << log2)));
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
bool EntryDecoder::DecodeGaps(const DecodeEntry& entry, DecodeJob& job, DecodeScratch& scratch) const {
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
  chunk.first_unit = entry.map->StretchStart(0) + job.first_unit;
  scratch.overlays.clear();
  const std::uint8_t* base;
  if (entry.map->is_contiguous()) {
    base = base_.Below(entry.origin).data() + chunk.first_unit * sizeof(Unit);
    base_.AddOverlay(entry.origin, chunk.first_unit, job.unit_count, scratch.overlays);
  } else {
    base = BaseUnits(entry, job.first_unit, job.unit_count, scratch);
  }
  DigestOfChanges digest(kernels_);
  const auto add_to_digest = [&](const GapTile& tile, std::uint32_t from, std::uint32_t size) {
    digest.Changes<Unit>(chunk.first_unit, {tile.positions + from, size}, tile.old_units + from * sizeof(Unit),
                         tile.new_units + from * sizeof(Unit));
  };
  const GapFollowUp follow_up(add_to_digest);
  std::size_t first = 0;
  for (GapTile& tile : std::span(tiles).first(count)) {
    tile.base = base;
    tile.overlay = scratch.overlays;
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
bool EntryDecoder::DecodeDense(const DecodeEntry& entry, DecodeJob& job, DecodeScratch& scratch) const {
  const int log2 = entry.index->tile_log2;
  const std::uint8_t* base = BaseUnits(entry, job.first_unit, job.unit_count, scratch);
  std::uint8_t* new_units = scratch.new_units.Room(job.unit_count * sizeof(Unit));
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
void EntryDecoder::CompareWhole(const DecodeEntry& entry, DecodeJob& job, DecodeScratch& scratch) const {
  const std::uint8_t* new_units = entry.payload.data() + job.first_unit * sizeof(Unit);
  if (entry.is_new) {
    job.digest_change =
        DigestOfRange({new_units, job.unit_count * sizeof(Unit)}, job.first_unit * sizeof(Unit), kernels_);
    return;
  }
  StageDifferences<Unit>(entry, job, BaseUnits(entry, job.first_unit, job.unit_count, scratch), new_units);
}

template <typename Unit>
void EntryDecoder::StageDifferences(const DecodeEntry& entry, DecodeJob& job, const std::uint8_t* base,
                                    const std::uint8_t* new_units) const {
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

bool EntryDecoder::Decode(std::span<DecodeJob> jobs, DecodeScratch& scratch) const {
  const DecodeEntry& entry = entries_[jobs.front().entry];
  return WithUnit(entry.map->unit_bytes(), [&]<typename Unit>() {
    switch (entry.index->mode) {
      case EntryMode::kSparse:
        return DecodeSparse<Unit>(jobs, scratch);
      case EntryMode::kGaps:
        return DecodeGaps<Unit>(entry, jobs.front(), scratch);
      case EntryMode::kDense:
        return DecodeDense<Unit>(entry, jobs.front(), scratch);
      default:
        CompareWhole<Unit>(entry, jobs.front(), scratch);
        return true;
    }
  });
}

}  // namespace weightwire
