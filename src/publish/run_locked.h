// A lock that is injected, so that this folder has none of its own: it keeps the caller's encoding and an anchor's
// reading of the base copy apart. The runner passes a function that holds a mutex. Programs with one thread pass
// RunUnlocked().
#pragma once

#include <functional>
#include <utility>

namespace weightwire {

// Calls `function` while no other function given to it runs. These functions have no effect on a store or a disk, so
// the lock is never held across one.
using RunLocked = std::function<void(const std::function<void()>& function)>;

[[nodiscard]] inline RunLocked RunUnlocked() {
  return [](const std::function<void()>& function) { function(); };
}

}  // namespace weightwire
