// The old bits of what an update of the base copy replaced, for taking it back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory_pool.h"
#include "base/result.h"

namespace weightwire {

// Of one stretch of an entry. Does not own its arrays: KeptBits does.
struct ReplacedUnits {
  std::size_t entry = 0;                     // in EncodeRequest::entries
  std::uint64_t first_unit = 0;              // positions count from here
  std::span<const std::uint32_t> positions;  // ascending
  std::span<const std::uint8_t> old_units;   // one for each position
};

// Few large pieces of memory, in large pages: a model has thousands of stretches, and small pages that come one by one
// from the system, for every version anew, cost more than what is written to them. Movable; what it holds stays where
// it is. One thread at a time.
class KeptBits {
 public:
  // Copies the arrays of `units` and returns it with its spans on the copies. kIo when there is not enough memory.
  Result<ReplacedUnits> Keep(ReplacedUnits units);

 private:
  std::vector<std::shared_ptr<MemoryPool>> pieces_;  // the last one has room
};

}  // namespace weightwire
