// A vector whose resize() does not fill what it adds: for memory that is written right after. It may lie in a pool.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/memory_pool.h"

namespace weightwire {

// std::allocator, but elements that are made from nothing are left as they are, and memory comes from a pool as long as
// that has any. Vectors that are copied get memory of their own.
template <typename T>
class UnfilledAllocator {
 public:
  // NOLINTBEGIN(readability-identifier-naming): the standard's names
  using value_type = T;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  UnfilledAllocator() = default;
  explicit UnfilledAllocator(std::shared_ptr<MemoryPool> pool) : pool_(std::move(pool)) {}
  template <typename U>
  UnfilledAllocator(const UnfilledAllocator<U>& other) : pool_(other.pool()) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] T* allocate(std::size_t count) {
    void* const memory = pool_ != nullptr ? pool_->Take(count * sizeof(T)) : nullptr;
    return memory != nullptr ? static_cast<T*>(memory) : std::allocator<T>().allocate(count);
  }
  void deallocate(T* memory, std::size_t count) {
    if (pool_ == nullptr || !pool_->Holds(memory)) std::allocator<T>().deallocate(memory, count);
  }
  template <typename U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;
  }
  template <typename U, typename... Arguments>
  void construct(U* at, Arguments&&... arguments) {
    ::new (static_cast<void*>(at)) U(std::forward<Arguments>(arguments)...);
  }
  [[nodiscard]] UnfilledAllocator select_on_container_copy_construction() const { return {}; }
  // NOLINTEND(readability-identifier-naming)

  [[nodiscard]] const std::shared_ptr<MemoryPool>& pool() const { return pool_; }
  friend bool operator==(const UnfilledAllocator& a, const UnfilledAllocator& b) { return a.pool_ == b.pool_; }

 private:
  std::shared_ptr<MemoryPool> pool_;
};

// REQUIRES: T is trivial. What resize() adds is not to be read before it was written.
template <typename T>
using UnfilledVector = std::vector<T, UnfilledAllocator<T>>;

}  // namespace weightwire
