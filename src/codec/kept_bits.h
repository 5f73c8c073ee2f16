// The old bits of what an update of the base copy replaced, for taking it back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory_pool.h"
#include "base/result.h"

namespace weightwire {

// Of one stretch of an entry, of at most 2^16 units. Does not own its arrays: KeptBits does.
struct ReplacedUnits {
  std::size_t entry = 0;                     // in EncodeRequest::entries
  std::uint64_t first_unit = 0;              // positions count from here
  std::span<const std::uint16_t> positions;  // ascending
  std::span<const std::uint8_t> old_units;   // one for each position
};

// Few large pieces of memory, in large pages: a model has thousands of stretches, and small pages that come one by one
// from the system, for every version anew, cost more than what is written to them. Movable; what it holds stays where
// it is. One thread at a time.
class KeptBits {
 public:
  // Copies `old_units`, one for each of the `positions`, which are ascending and count from `first_unit`, and appends
  // what they are now to `replaced`. kIo when there is not enough memory.
  Status Keep(std::size_t entry, std::uint64_t first_unit, std::span<const std::uint32_t> positions,
              std::span<const std::uint8_t> old_units, std::vector<ReplacedUnits>& replaced);

  // The same memory for other bits: those that it holds are not needed any more.
  void Clear();

 private:
  Result<void*> Room(std::size_t bytes);

  std::vector<std::shared_ptr<MemoryPool>> pieces_;  // the last one has room
  std::vector<std::shared_ptr<MemoryPool>> spare_;   // empty ones
};

}  // namespace weightwire
