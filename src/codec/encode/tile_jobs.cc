#include "codec/encode/tile_jobs.h"

#include <algorithm>
#include <utility>

namespace weightwire {

TileJob& TileJobs::Unfilled(const EntryWork& work, const ExpandedTables* tables) {
  const auto alike = [&](const TileJob& job) {
    return job.mode == work.coding->mode && job.unit_bytes == work.map->unit_bytes() &&
           job.has_old == work.source->has_old && job.tables == tables;
  };
  const auto found = std::ranges::find_if(unfilled_, alike);
  if (found != unfilled_.end()) return *found;
  return unfilled_.emplace_back(TileJob{work.coding->mode, work.map->unit_bytes(), work.source->has_old, tables, {}});
}

void TileJobs::Add(EntryWork& work, const ExpandedTables* tables) {
  const std::size_t tiles = work.tiles.size();
  for (std::size_t first = 0; first < tiles; first += kLanes) {
    const std::size_t count = std::min(kLanes, tiles - first);
    TileJob& unfilled = Unfilled(work, tables);
    if (unfilled.tiles.size() + count > kLanes) {
      jobs_.push_back(
          {unfilled.mode, unfilled.unit_bytes, unfilled.has_old, tables, std::exchange(unfilled.tiles, {})});
    }
    unfilled.tiles.reserve(kLanes);
    for (std::size_t tile = first; tile < first + count; ++tile) unfilled.tiles.push_back({&work, tile});
  }
}

std::vector<TileJob> TileJobs::Finish() && {
  for (TileJob& job : unfilled_) {
    if (!job.tiles.empty()) jobs_.push_back(std::move(job));
  }
  return std::move(jobs_);
}

}  // namespace weightwire
