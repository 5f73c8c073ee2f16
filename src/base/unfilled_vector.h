// A vector whose resize() does not fill what it adds: for memory that is written right after.
#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace weightwire {

// std::allocator, but elements that are made from nothing are left as they are.
template <typename T>
struct UnfilledAllocator : std::allocator<T> {
  template <typename U>
  struct rebind {                        // NOLINT(readability-identifier-naming): the standard's name
    using other = UnfilledAllocator<U>;  // NOLINT(readability-identifier-naming)
  };
  using std::allocator<T>::allocator;

  template <typename U>
  void construct(U* at) {  // NOLINT(readability-identifier-naming)
    ::new (static_cast<void*>(at)) U;
  }
  template <typename U, typename... Arguments>
  void construct(U* at, Arguments&&... arguments) {  // NOLINT(readability-identifier-naming)
    ::new (static_cast<void*>(at)) U(std::forward<Arguments>(arguments)...);
  }
};

// REQUIRES: T is trivial. What resize() adds is not to be read before it was written.
template <typename T>
using UnfilledVector = std::vector<T, UnfilledAllocator<T>>;

}  // namespace weightwire
