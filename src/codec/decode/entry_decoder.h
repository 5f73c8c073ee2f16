// Decodes the entries of a delta, range by range, each mode in its own way, into chunks of changes.
//
// What it is given was checked by its plan, but the tiles' bytes may be anything: whatever they are, nothing outside
// the memory for the result is written, and what does not decode to its end is told apart. Whether the bits are the
// right ones only their digest shows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory_pool.h"
#include "codec/decode/chunk_writer.h"
#include "codec/decode/decode_plan.h"
#include "codec/decode/state_view.h"
#include "codec/kernels/kernels.h"

namespace weightwire {

// Units of an entry that one job decodes; a multiple of its tiles.
[[nodiscard]] std::uint64_t UnitsPerJob(const DecodeEntry& entry);

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
struct DecodeScratch {
  std::vector<std::uint8_t> base;
  std::vector<std::uint8_t> stretch;
  std::vector<SparseTile> tiles;
  std::vector<OverlaidUnits> overlays;    // of the tiles, one after another …
  std::vector<std::size_t> overlay_ends;  // … and where each tile's end
  Scratch<std::uint32_t> times;
  Scratch<std::uint8_t> changes;
  Scratch<std::uint8_t> new_units;
  std::unique_ptr<DecodeScratch> for_large_tiles;

  DecodeScratch& ForLargeTiles() {
    if (for_large_tiles == nullptr) for_large_tiles = std::make_unique<DecodeScratch>();
    return *for_large_tiles;
  }
};

// Everything passed must outlive it. Thread safety: Decode may be called by several threads, each with its own scratch.
class EntryDecoder {
 public:
  // `memory`, if there is one, is for what jobs of contiguous entries give.
  EntryDecoder(std::span<const DecodeEntry> entries, const StateView& base, const Kernels& kernels,
               std::shared_ptr<MemoryPool> memory)
      : entries_(entries), base_(base), kernels_(kernels), memory_(std::move(memory)) {}

  // Whether jobs of this entry may be decoded together with others, by the same lanes: their base is not copied.
  [[nodiscard]] bool MayShareLanes(const DecodeEntry& entry) const;

  // One job; or several, of entries that share lanes and have units of the same width. False: a tile is damaged.
  [[nodiscard]] bool Decode(std::span<DecodeJob> jobs, DecodeScratch& scratch) const;

 private:
  const std::uint8_t* BaseUnits(const DecodeEntry& entry, std::uint64_t first, std::uint64_t count,
                                DecodeScratch& scratch) const;
  template <typename Unit>
  bool DecodeSparse(std::span<DecodeJob> jobs, DecodeScratch& scratch) const;
  template <typename Unit>
  bool StageTiles(DecodeJob& job, std::span<SparseTile> tiles, DecodeScratch& scratch) const;
  template <typename Unit>
  bool DecodeGaps(const DecodeEntry& entry, DecodeJob& job, DecodeScratch& scratch) const;
  template <typename Unit>
  bool DecodeDense(const DecodeEntry& entry, DecodeJob& job, DecodeScratch& scratch) const;
  template <typename Unit>
  void CompareWhole(const DecodeEntry& entry, DecodeJob& job, DecodeScratch& scratch) const;
  template <typename Unit>
  void StageDifferences(const DecodeEntry& entry, DecodeJob& job, const std::uint8_t* base,
                        const std::uint8_t* new_units) const;

  const std::span<const DecodeEntry> entries_;
  const StateView& base_;
  const Kernels& kernels_;
  const std::shared_ptr<MemoryPool> memory_;  // none if there is little to stage
};

}  // namespace weightwire
