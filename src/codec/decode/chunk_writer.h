// Changed units on their way from a decoder into chunks of a staged change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/memory_pool.h"
#include "codec/decode/decode_plan.h"
#include "codec/decode/staged_change.h"
#include "codec/digest/digest.h"
#include "codec/format/box.h"
#include "codec/format/units.h"
#include "codec/kernels/kernels.h"

namespace weightwire {

// A range of units of an entry, and the changes decoded from it.
struct DecodeJob {
  std::size_t entry = 0;
  std::uint64_t first_unit = 0;  // of the box
  std::uint64_t unit_count = 0;
  std::vector<StagedChunk> chunks;
  Digest digest_change;
};

[[nodiscard]] inline StagedChunk EmptyChunk(const std::shared_ptr<MemoryPool>& pool) {
  const UnfilledAllocator<std::uint8_t> memory(pool);
  return {0, UnfilledVector<std::uint32_t>(memory), UnfilledVector<std::uint8_t>(memory),
          UnfilledVector<std::uint8_t>(memory)};
}

// Turns units of a job into chunks of the tensor, and adds up what they do to its digest.
template <typename Unit>
class ChunkWriter {
 public:
  // `expected` is how many units will come, or 0 if that is not known. A pool is for one chunk of so many.
  ChunkWriter(const DecodeEntry& entry, DecodeJob& job, std::size_t expected, const Kernels& kernels,
              const std::shared_ptr<MemoryPool>& pool = nullptr)
      : map_(*entry.map),
        job_(job),
        expected_(expected),
        kernels_(kernels),
        chunk_(EmptyChunk(pool)),
        digest_(kernels) {
    NextStretch(job.first_unit);
  }

  // `at` counts from the job's first unit, ascending.
  void Add(std::uint64_t at, Unit old_unit, Unit new_unit) {
    const std::uint64_t box_unit = job_.first_unit + at;
    if (box_unit >= stretch_end_) [[unlikely]]
      NextStretch(box_unit);
    const std::uint64_t unit = box_unit + to_tensor_;
    MakeRoom(unit, 1, 1);
    digest_.Change<Unit>(unit, old_unit, new_unit);
    chunk_.offsets[count_] = static_cast<std::uint32_t>(unit - chunk_.first_unit);
    StoreUnit<Unit>(chunk_.old_units.data(), count_, old_unit);
    StoreUnit<Unit>(chunk_.new_units.data(), count_, new_unit);
    ++count_;
  }

  // All changes of a tile, which begins at `at`.
  void AddTile(std::uint64_t at, const SparseTile& tile) {
    if (tile.changed == 0) return;
    const std::uint64_t box_unit = job_.first_unit + at;
    if (box_unit < stretch_begin_ || box_unit + tile.unit_count > stretch_end_) {
      for (std::uint32_t c = 0; c < tile.changed; ++c) {
        const TileChange<Unit> change = LoadChange<Unit>(tile.changes, c);
        Add(at + change.position, change.old_unit, change.new_unit);
      }
      return;
    }
    // All of it within one stretch of the tensor.
    const std::uint64_t unit = box_unit + to_tensor_;
    MakeRoom(unit, tile.unit_count, tile.changed);
    const auto offset = static_cast<std::uint32_t>(unit - chunk_.first_unit);
    std::uint32_t* offsets = chunk_.offsets.data() + count_;
    std::uint8_t* old_units = chunk_.old_units.data() + count_ * sizeof(Unit);
    std::uint8_t* new_units = chunk_.new_units.data() + count_ * sizeof(Unit);
    if constexpr (sizeof(Unit) == 2) {
      kernels_.split_u16(tile.changes, tile.changed, offset, offsets, old_units, new_units);
    } else {
      for (std::uint32_t c = 0; c < tile.changed; ++c) {
        const TileChange<Unit> change = LoadChange<Unit>(tile.changes, c);
        offsets[c] = offset + change.position;
        StoreUnit<Unit>(old_units, c, change.old_unit);
        StoreUnit<Unit>(new_units, c, change.new_unit);
      }
    }
    digest_.Changes<Unit>(chunk_.first_unit, {offsets, tile.changed}, old_units, new_units);
    count_ += tile.changed;
  }

  void Finish() {
    Flush();
    job_.digest_change = digest_.Finish();
  }

 private:
  // For `changed` more in units [unit, unit + units), which follow on what there is.
  void MakeRoom(std::uint64_t unit, std::uint32_t units, std::size_t changed) {
    constexpr std::uint64_t kMaxOffset = 0xffffffff;
    if (count_ != 0 && unit + units - 1 - chunk_.first_unit > kMaxOffset) [[unlikely]]
      Flush();
    if (count_ == 0) chunk_.first_unit = unit;
    if (count_ + changed > chunk_.offsets.size()) [[unlikely]] {
      Resize(std::max(expected_ > count_ ? expected_ : std::max<std::size_t>(16, 2 * count_), count_ + changed));
    }
  }

  void Resize(std::size_t count) {
    chunk_.offsets.resize(count);
    chunk_.old_units.resize(count * sizeof(Unit));
    chunk_.new_units.resize(count * sizeof(Unit));
  }

  void NextStretch(std::uint64_t box_unit) {
    const std::uint64_t stretch = box_unit / map_.stretch_units();
    to_tensor_ = map_.StretchStart(stretch) - stretch * map_.stretch_units();  // modulo 2^64
    stretch_begin_ = stretch * map_.stretch_units();
    stretch_end_ = stretch_begin_ + map_.stretch_units();
  }

  void Flush() {
    if (count_ == 0) return;
    Resize(count_);
    if (expected_ == 0) {
      chunk_.offsets.shrink_to_fit();
      chunk_.old_units.shrink_to_fit();
      chunk_.new_units.shrink_to_fit();
    }
    job_.chunks.push_back(std::move(chunk_));
    chunk_ = {};
    expected_ -= std::min(expected_, count_);
    count_ = 0;
  }

  const BoxMap& map_;
  DecodeJob& job_;
  std::size_t expected_;
  const Kernels& kernels_;
  StagedChunk chunk_;
  std::size_t count_ = 0;
  std::uint64_t to_tensor_ = 0;
  std::uint64_t stretch_begin_ = 0;
  std::uint64_t stretch_end_ = 0;
  DigestOfChanges digest_;
};

}  // namespace weightwire
