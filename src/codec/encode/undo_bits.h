// The old bits of what an update of the base copy replaced, for taking it back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/large_block.h"
#include "base/result.h"
#include "base/unfilled_vector.h"

namespace weightwire {

// Of one stretch of an entry, of at most 2^16 units. Does not own its arrays: UndoBits does.
struct ReplacedUnits {
  std::size_t entry = 0;                     // in EncodeRequest::entries
  std::uint64_t first_unit = 0;              // positions count from here
  std::span<const std::uint16_t> positions;  // ascending
  std::span<const std::uint8_t> old_units;   // one for each position
};

// A few small blocks of memory, each twice as large as the one before, and then large ones, in large pages: a model has
// thousands of stretches, and small pages that come one by one from the system, for every version again, cost more than
// what is written to them. But many threads with little each must not take a large block each. Movable; what it holds
// stays where it is. One thread at a time.
class UndoBits {
 public:
  // Copies `old_units`, one for each of the `positions`, which are ascending and count from `first_unit`, and appends
  // what they are now to `replaced`. kIo when there is not enough memory.
  Status Keep(std::size_t entry, std::uint64_t first_unit, std::span<const std::uint32_t> positions,
              std::span<const std::uint8_t> old_units, std::vector<ReplacedUnits>& replaced);

  // The same memory for other bits: those that it holds are not needed any more.
  void Clear();
  // Frees the memory that Clear() left over.
  void FreeSpare() { spare_.clear(); }

  // What it takes.
  [[nodiscard]] std::size_t memory_bytes() const;

 private:
  struct Block {
    LargeBlock large;
    UnfilledVector<std::uint8_t> small;  // if it is not large
    std::size_t taken = 0;

    [[nodiscard]] std::size_t size() const { return large ? large.size() : small.size(); }
    // nullptr if there is not as much left.
    std::uint8_t* Take(std::size_t bytes);
  };

  Result<std::uint8_t*> Room(std::size_t bytes);

  std::vector<Block> blocks_;  // the last one has room
  std::vector<Block> spare_;   // empty ones, the next to use last
};

}  // namespace weightwire
