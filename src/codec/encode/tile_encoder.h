// Encoding of one tile.
//
// A tile is a fixed number of consecutive units of a box. Its bytes depend on its base bits, its new bits and the
// tables alone. An encoder owns scratch memory: one per thread. spec/FORMAT.md, "Payload".
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "codec/encode/unit_reader.h"
#include "codec/format/rans.h"
#include "codec/format/tables.h"
#include "codec/format/tile_changes.h"
#include "codec/kernels/kernels.h"

namespace weightwire {

// One tile to encode.
struct TileInput {
  const std::uint8_t* old_units = nullptr;
  const std::uint8_t* new_units = nullptr;
  std::uint32_t count = 0;
  // If set, it makes the new units, from first_unit on; new_units is not used.
  const UnitReader* reader = nullptr;
  std::uint64_t first_unit = 0;
};

// Called for each tile in turn as soon as changes(k) is known, while its bits are in the cache; the old ones are not
// needed any more and may be overwritten. An error ends the call that it comes from.
using TileDone = std::function<Status(std::size_t k)>;

class TileEncoder {
 public:
  explicit TileEncoder(const Kernels& kernels) : kernels_(&kernels) {}

  [[nodiscard]] const Kernels& kernels() const { return *kernels_; }
  // What it holds between two calls.
  [[nodiscard]] std::size_t memory_bytes() const;

  // Each takes up to kLanes tiles. Afterwards stream(k) is tile k's bytes and changes(k) what it changes, valid until
  // the next call. The only errors are those of readers and of `done`. REQUIRES: the tables can code every step that
  // occurs.
  Status EncodeSparse(std::span<const TileInput> tiles, int unit_bytes, const ExpandedTables& tables,
                      const TileDone& done);
  Status EncodeDense(std::span<const TileInput> tiles, int unit_bytes, const ExpandedTables& tables,
                     const TileDone& done);
  // Finds the changes, and makes no stream.
  Status Compare(std::span<const TileInput> tiles, int unit_bytes, const TileDone& done);

  [[nodiscard]] std::span<const std::uint8_t> stream(std::size_t k) const { return lanes_[k].stream; }
  [[nodiscard]] TileChanges changes(std::size_t k) const {
    const Lane& lane = lanes_[k];
    return {std::span(lane.positions).first(lane.changed), lane.old_units.data(), lane.new_units.data(),
            lane.single_steps};
  }

 private:
  struct Lane {
    // What changes: memory that only grows, and how many there are.
    std::vector<std::uint32_t> positions;
    std::vector<std::uint8_t> old_units;
    std::vector<std::uint8_t> new_units;
    std::vector<std::uint32_t> ends;  // on the tile's clock, only of sparse tiles
    std::size_t changed = 0;
    std::uint32_t single_steps = 0;  // only of sparse tiles
    std::vector<RansEvent> events;   // kPushPad certain ones, then the tile's in the decoder's order
    std::size_t event_count = 0;
    std::vector<std::uint32_t> words;
    std::vector<std::uint8_t> stream;

    void MakeRoom(std::size_t count, std::size_t unit_bytes);
    // Where the tile's events go: room for `count`.
    RansEvent* EventsRoom(std::size_t count);
  };

  // The new units of a chunk, which a reader makes in chunk_.
  Result<const std::uint8_t*> NewUnits(const TileInput& tile, std::uint32_t begin, std::uint32_t count, int unit_bytes);
  template <typename Unit>
  Status FindChanged(const TileInput& tile, Lane& lane);
  template <typename Unit>
  Status SparseEvents(const TileInput& tile, const ExpandedTables& tables, Lane& lane);
  // REQUIRES: the changes were found. New units are read once: their owner may be changing them.
  template <typename Unit>
  void DenseEvents(const TileInput& tile, const ExpandedTables& tables, Lane& lane);
  void PushEvents(std::size_t lane_count);

  const Kernels* kernels_;
  std::vector<std::uint32_t> times_;
  std::vector<std::uint8_t> chunk_;
  std::array<Lane, kLanes> lanes_;
};

}  // namespace weightwire
