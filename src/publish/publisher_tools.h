// What a publisher runs on. All that it points to must outlive the publisher.
#pragma once

#include <cstddef>
#include <functional>

#include "base/clock.h"
#include "base/filesystem.h"
#include "base/random.h"
#include "base/threads.h"
#include "codec/kernels/kernels.h"

namespace weightwire {

// A lock that is injected, so that this folder has none of its own: it keeps the caller's encoding and an anchor's
// reading of the base copy apart. Calls `function` while no other function given to it runs. These functions have no
// effect on a store or a disk, so the lock is never held across one. Programs with one thread pass RunUnlocked().
using RunLocked = std::function<void(const std::function<void()>& function)>;

[[nodiscard]] inline RunLocked RunUnlocked() {
  return [](const std::function<void()>& function) { function(); };
}

struct PublisherTools {
  const Clock* clock = nullptr;
  Random* random = nullptr;
  FileSystem* files = nullptr;  // only for directories
  const Kernels* kernels = nullptr;
  ThreadPool* pool = nullptr;
  RunLocked run_locked = RunUnlocked();
  std::size_t fetch_threads = 1;  // for a rebuild of the base, as FollowerOptions::fetch_threads
};

}  // namespace weightwire
