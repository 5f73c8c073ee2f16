// What a publisher runs on. All that it points to must outlive the publisher.
#pragma once

#include <cstddef>

#include "base/clock.h"
#include "base/filesystem.h"
#include "base/random.h"
#include "base/threads.h"
#include "codec/kernels/kernels.h"
#include "publish/run_locked.h"

namespace weightwire {

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
