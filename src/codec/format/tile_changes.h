// The changes of one tile, as the encoder finds them.
#pragma once

#include <cstdint>
#include <span>

namespace weightwire {

// What a tile changes: positions, ascending, with the bits before and after.
struct TileChanges {
  std::span<const std::uint32_t> positions;
  const std::uint8_t* old_units;
  const std::uint8_t* new_units;
  std::uint32_t single_steps = 0;  // changes to the neighbouring number; counted only in sparse tiles
};

}  // namespace weightwire
