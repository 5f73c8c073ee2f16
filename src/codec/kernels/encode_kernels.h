// The inner loops of the encoder, once per instruction set. As in kernels.h: the scalar ones define the result, the
// others must equal them bit for bit (encode_kernels_test.cc); pure functions over caller-owned memory of any
// alignment, which may be called from any thread.
//
// count_fields is for the sample that tables are chosen by. A sparse tile goes through the three others. scan reads old
// and new, once, and finds what changed and when on the tile's clock (spec/FORMAT.md, "Positions"); make_events turns
// changes into events of the entropy coder; push_events codes the events of many tiles side by side.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "codec/format/rans.h"
#include "codec/format/tables.h"

namespace weightwire {

// A chunk of a tile to scan.
struct ScanChunk {
  const std::uint8_t* old_units = nullptr;
  const std::uint8_t* new_units = nullptr;
  std::uint32_t first_unit = 0;  // its position in the tile, a multiple of kTimeBlock
  std::uint32_t count = 0;       // at most kChunkUnits; a multiple of kTimeBlock, but for the tile's last chunk
  std::uint64_t time = 0;        // the sum of the rates of the tile's units before it
  // If set, the new units are the BF16 of these F32, and scan makes them on the way: it fills `made`, which new_units
  // points to. Memory is then read at the pace of the comparison, without a pass of its own.
  const std::uint8_t* floats = nullptr;
  std::uint8_t* made = nullptr;
};

// What scan writes: changed units in ascending order, each array with room for kScanRoom more than are there.
struct FoundChanges {
  std::uint32_t* positions = nullptr;  // in the tile
  std::uint8_t* old_units = nullptr;
  std::uint8_t* new_units = nullptr;
  std::uint32_t* ends = nullptr;  // the sum of the rates of the units up to it and its own, modulo 2^32
};
inline constexpr std::uint32_t kScanRoom = 64;

struct ScanResult {
  std::uint32_t found = 0;
  std::uint64_t time = 0;  // at the end of the chunk
};

// What changes in a tile, as scan leaves it: kScanRoom more may be read of each array. And the tile, for long waits.
struct SparseChanges {
  const std::uint8_t* tile_units = nullptr;  // the base's
  std::uint32_t tile_count = 0;
  const std::uint32_t* times = nullptr;  // from scan
  std::uint64_t total_time = 0;
  std::size_t changed = 0;  // at least 1
  const std::uint32_t* positions = nullptr;
  const std::uint8_t* old_units = nullptr;
  const std::uint8_t* new_units = nullptr;
  const std::uint32_t* ends = nullptr;
};

// Room that make_events needs, beyond what it says it wrote: whole vectors are written.
inline constexpr std::size_t kEventRoom = 64;

struct EventCounts {
  std::size_t events = 0;
  std::uint32_t single_steps = 0;  // changes to the neighbouring number
};

// The events of one stream, and what became of them.
struct PushLane {
  const RansEvent* events = nullptr;  // in the decoder's order; before them are kPushPad certain events
  std::size_t count = 0;
  std::uint32_t* words = nullptr;  // room for count + 1
  std::size_t word_count = 0;
  std::uint64_t state = 1;
};
inline constexpr std::size_t kPushPad = 8;

// How many units have each class field.
using FieldCount = std::array<std::uint64_t, 256>;

struct EncodeKernels {
  // Adds the units' fields to what was counted before.
  void (*count_fields)(const std::uint8_t* units, std::uint32_t count, int unit_bytes, const ClassRule& rule,
                       FieldCount& counts);

  // Appends the changes of a chunk. If the rates differ, also writes times[k], the sum of the rates of the tile's first
  // 8k units modulo 2^32, from the chunk's first to its end; `times` is the whole tile's, TimesRoom of it.
  ScanResult (*scan)(const ScanChunk& chunk, int unit_bytes, const ExpandedTables& tables, std::uint32_t* times,
                     const FoundChanges& found);

  // The events of a sparse tile, in the decoder's order. `events` has room for MostEvents and kEventRoom.
  EventCounts (*make_events)(const SparseChanges& changes, int unit_bytes, const ExpandedTables& tables,
                             RansEvent* events);

  // Pushes every lane's events, the last first, from state 1 on.
  void (*push_events)(std::span<PushLane> lanes);
};

const EncodeKernels* ScalarEncodeKernels();

}  // namespace weightwire
