// Tiles of gaps mode: bytes, with no tables and no entropy coder, which decode in a few instructions a change
// (spec/FORMAT.md, "Gap tiles"). Decoding is a kernel (kernels.h); here is what comes before it, and the encoder.
//
// Pure functions; safe from any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "codec/format/tile_changes.h"

namespace weightwire {

// Codes of steps: 2 * (magnitude - 1), plus 1 for a minus; from kFirstLongStep on, the magnitude has a varint.
inline constexpr std::uint32_t kFirstLongStep = 14;
inline constexpr std::uint64_t kLeastLongMagnitude = 8;

// A gap that is not followed by a change.
template <typename Gap>
inline constexpr std::uint32_t kLongestGap = std::numeric_limits<Gap>::max();

// A stream taken apart as far as that needs no decoding.
struct GapStream {
  std::uint32_t changed = 0;
  bool wide = false;                    // gaps of 16 bits instead of eight
  const std::uint8_t* steps = nullptr;  // (changed + 1) / 2 bytes
  std::span<const std::uint8_t> rest;   // gaps, then magnitudes
};

// None if the stream is damaged. A stream of no bytes has no changes. So much is certain of one that is accepted:
// changed is at most unit_count, and at most the number of its bytes.
std::optional<GapStream> OpenGapStream(std::span<const std::uint8_t> stream, std::uint32_t unit_count);

// Appends the stream of a tile that changes so, with narrow or wide gaps, whichever is shorter. No changes, no bytes.
void AppendGapStream(const TileChanges& changes, int unit_bytes, std::vector<std::uint8_t>& streams);

}  // namespace weightwire
