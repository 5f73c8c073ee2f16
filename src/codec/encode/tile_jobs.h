// Which tiles are coded together: a thread's job is a handful of tiles that are coded alike, side by side. The tiles of
// a large entry make jobs of their own; small entries share them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "codec/encode/entry_work.h"
#include "codec/format/format.h"
#include "codec/format/tables.h"

namespace weightwire {

struct TileOf {
  EntryWork* work = nullptr;
  std::size_t tile = 0;
};

// At least one tile and at most kLanes, all of one mode and width, and all of entries that have an old state or of such
// that have none. Tiles of one entry follow each other.
struct TileJob {
  EntryMode mode = EntryMode::kWhole;
  int unit_bytes = 1;
  bool has_old = true;
  const ExpandedTables* tables = nullptr;  // none if the mode has none
  std::vector<TileOf> tiles;
};

// Collects the tiles of a group of entries.
class TileJobs {
 public:
  // All tiles of an entry, whose coding is known. `tables` must outlive the jobs.
  void Add(EntryWork& work, const ExpandedTables* tables);
  [[nodiscard]] std::vector<TileJob> Finish() &&;

 private:
  TileJob& Unfilled(const EntryWork& work, const ExpandedTables* tables);

  std::vector<TileJob> jobs_;
  std::vector<TileJob> unfilled_;  // one for each way to code that has occurred
};

}  // namespace weightwire
