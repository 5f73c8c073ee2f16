// An entry while it is encoded: how it is coded, and the results of its tiles.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "codec/encode/encoder.h"
#include "codec/encode/mode_choice.h"
#include "codec/format/box.h"
#include "codec/format/digest_value.h"

namespace weightwire {

// The location of a tile's stream until the file is assembled.
struct StoredStream {
  std::size_t worker = 0;
  std::size_t offset = 0;
  std::uint32_t size = 0;
};

// What came of a tile.
struct TileResult {
  StoredStream stream;
  std::uint32_t changed = 0;
  std::uint32_t single_steps = 0;
  Digest digest_change;
};

struct EntryWork {
  const EncodeEntry* source = nullptr;
  std::size_t position = 0;  // in the request
  std::optional<BoxMap> map;
  std::optional<Coding> coding;  // none: unchanged for certain
  std::span<TileResult> tiles;   // as many as TileCount() says, once it is to be coded

  [[nodiscard]] std::uint64_t Bytes() const {
    return map->unit_count() * static_cast<std::uint64_t>(map->unit_bytes());
  }
  [[nodiscard]] std::uint32_t TileUnits() const { return 1u << coding->tile_log2; }
  [[nodiscard]] std::size_t TileCount() const {
    return static_cast<std::size_t>((map->unit_count() + TileUnits() - 1) >> coding->tile_log2);
  }
};

}  // namespace weightwire
