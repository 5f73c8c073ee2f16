#include "base/memory_pool.h"

#include <sys/mman.h>

#include <functional>
#include <limits>
#include <new>

namespace weightwire {

namespace {
constexpr std::size_t kLargePage = std::size_t{1} << 21;
constexpr std::align_val_t kAtLargePage{kLargePage};
}  // namespace

std::shared_ptr<MemoryPool> MemoryPool::Make(std::size_t bytes) {
  if (bytes < kLargePage || bytes > std::numeric_limits<std::size_t>::max() / 2) return nullptr;
  auto* begin = static_cast<std::byte*>(::operator new(bytes, kAtLargePage, std::nothrow));
  if (begin == nullptr) return nullptr;
  // Only a wish. Whole pages alone: what lies behind the memory is not ours.
  ::madvise(begin, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
  return std::shared_ptr<MemoryPool>(new MemoryPool(begin, bytes));
}

MemoryPool::~MemoryPool() { ::operator delete(begin_, kAtLargePage); }

void* MemoryPool::Take(std::size_t bytes) {
  if (bytes > size_) return nullptr;
  const std::size_t rounded = Rounded(bytes);
  std::size_t at = taken_.load(std::memory_order_relaxed);
  do {
    if (rounded > size_ - at) return nullptr;
  } while (!taken_.compare_exchange_weak(at, at + rounded, std::memory_order_relaxed));
  return begin_ + at;
}

bool MemoryPool::Holds(const void* memory) const {
  const std::less_equal<> not_after;
  return not_after(static_cast<const void*>(begin_), memory) &&
         std::less<>()(memory, static_cast<const void*>(begin_ + size_));
}

}  // namespace weightwire
