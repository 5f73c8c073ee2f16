// One large block of memory that many vectors share (unfilled_vector.h), in large pages where the system gives them.
//
// Memory that is new costs a fault for each page. What is staged takes thousands of small pages, or a few large ones.
// Nothing is given back before all is: a pool lives until the last vector that may lie in it is gone.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/large_block.h"

namespace weightwire {

// Safe to use from many threads.
class MemoryPool {
 public:
  // None if `bytes` is less than a large page, which would cost more than it saves, or more than there is.
  static std::shared_ptr<MemoryPool> Make(std::size_t bytes);

  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // Bytes that an allocation takes from the pool.
  static constexpr std::size_t Rounded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
  // Memory of that size, not filled, for any type; nullptr if there is not as much left.
  void* Take(std::size_t bytes);
  [[nodiscard]] bool Holds(const void* memory) const;

 private:
  static constexpr std::size_t kAlignment = 64;

  MemoryPool(LargeBlock block, std::size_t size) : block_(std::move(block)), size_(size) {}

  LargeBlock block_;
  std::size_t size_;  // the block may be larger
  std::atomic<std::size_t> taken_ = 0;
};

}  // namespace weightwire
