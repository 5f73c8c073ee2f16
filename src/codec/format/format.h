// Names, numbers and limits of the delta file (spec/FORMAT.md). Changing any of them changes the format.
#pragma once

#include <cstdint>

namespace weightwire {

inline constexpr const char* kDeltaFormatName = "weightwire-delta";
inline constexpr const char* kDeltaFormatVersion = "1";
inline constexpr const char* kIndexEntry = "index";
inline constexpr const char* kTablesEntry = "tables";
inline constexpr const char* kPayloadEntry = "payload";

// How an entry is coded in the file. "Conditioned" and "uniform" are both sparse: the table set tells which.
enum class EntryMode : std::uint8_t { kSparse = 0, kDense = 1, kWhole = 2, kGaps = 3 };
// Whether entries of a mode need a table set.
constexpr bool HasTables(EntryMode mode) { return mode == EntryMode::kSparse || mode == EntryMode::kDense; }

// Units of a tile: at least and at most, as powers of two.
inline constexpr int kMinTileLog2 = 8;
inline constexpr int kMaxTileLog2 = 18;

inline constexpr std::uint64_t kMaxTableSets = 1 << 16;
inline constexpr std::uint64_t kMaxEntries = 1 << 22;
inline constexpr std::uint64_t kMaxBoxesPerTensor = 1 << 14;  // as many as a delta has parts
// Tiles of one entry: 2^44 units in the largest tiles.
inline constexpr std::uint64_t kMaxTilesPerEntry = 1 << 26;
// A tile's stream: more than any encoder needs for 2^18 units of eight bytes.
inline constexpr std::uint64_t kMaxTileBytes = 1 << 24;

// The number stored for a scale of 0.
inline constexpr int kScaleBias = 128;
inline constexpr int kMaxScale = 127;

}  // namespace weightwire
