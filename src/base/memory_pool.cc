#include "base/memory_pool.h"

#include <functional>

namespace weightwire {

std::shared_ptr<MemoryPool> MemoryPool::Make(std::size_t bytes) {
  if (bytes < LargeBlock::kPage) return nullptr;
  LargeBlock block = LargeBlock::Allocate(bytes);
  if (!block) return nullptr;
  return std::shared_ptr<MemoryPool>(new MemoryPool(std::move(block), bytes));
}

void* MemoryPool::Take(std::size_t bytes) {
  if (bytes > size_) return nullptr;
  const std::size_t rounded = Rounded(bytes);
  std::size_t at = taken_.load(std::memory_order_relaxed);
  do {
    if (rounded > size_ - at) return nullptr;
  } while (!taken_.compare_exchange_weak(at, at + rounded, std::memory_order_relaxed));
  return block_.begin() + at;
}

bool MemoryPool::Holds(const void* memory) const {
  const std::less_equal<> not_after;
  return not_after(static_cast<const void*>(block_.begin()), memory) &&
         std::less<>()(memory, static_cast<const void*>(block_.begin() + size_));
}

}  // namespace weightwire
