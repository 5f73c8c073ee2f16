// Mutual exclusion, injected: what a publisher does to its base copy and what an anchor reads of it never overlap. The
// runner gives a lock; where there is one thread only, nothing is needed.
#pragma once

#include <functional>
#include <utility>

namespace weightwire {

// Runs the function while no other one runs. Functions given to it have no effect on a store or a disk, so that no lock
// is ever held across one.
using Exclusion = std::function<void(const std::function<void()>& function)>;

[[nodiscard]] inline Exclusion OneThreadOnly() {
  return [](const std::function<void()>& function) { function(); };
}

}  // namespace weightwire
