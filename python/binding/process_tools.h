// What a publisher or follower of a Python process runs on.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/random.h"
#include "base/real_file_system.h"
#include "base/result.h"
#include "base/threads.h"
#include "codec/kernels/kernels.h"
#include "store/store.h"
#include "store/wrappers/trace_store.h"

namespace weightwire::python {

// Owns all that stores, publishers and followers point to; each of them keeps one. Neither copied nor moved.
struct ProcessTools {
  // `threads` 0: as many as the machine has.
  static Result<std::shared_ptr<ProcessTools>> Make(std::size_t threads);

  SystemClock clock;
  SystemSleeper sleeper;
  SystemRandom random;
  SystemRandom store_random;
  RealFileSystem files;
  const Kernels* kernels = nullptr;
  std::unique_ptr<ThreadPool> pool;
};

// A store with the usual wrappers, and the tools it uses.
struct OpenedStore {
  std::shared_ptr<ProcessTools> process;
  std::unique_ptr<Store> store;
  const TraceStore* counts = nullptr;
};

// `bytes_per_second` 0: as fast as it goes.
Result<OpenedStore> OpenStoreFor(const std::string& url, std::shared_ptr<ProcessTools> process,
                                 std::uint64_t bytes_per_second);

}  // namespace weightwire::python
