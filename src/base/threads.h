// A fixed set of threads for loops over independent items (tiles, tensors).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/result.h"

namespace weightwire {

// The caller of ParallelFor is one of the threads, so a pool of one starts none and runs everything inline.
//
// Thread safety: ParallelFor is called by one thread at a time, and not from within its own loop body.
class ThreadPool {
 public:
  using Body = std::function<void(std::size_t index, std::size_t worker)>;

  // REQUIRES: threads >= 1. Has fewer, if the system does not give as many.
  explicit ThreadPool(std::size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] std::size_t threads() const { return workers_.size() + 1; }

  // Calls body(index, worker) once for every index in [0, count), in no particular order, and returns when all calls
  // have returned; their writes are visible to the caller then. `worker` is in [0, threads()), and no two calls with
  // the same worker overlap: it can pick a scratch buffer. Indices are handed out one by one, in rising order, to
  // whoever is free. The body must not throw.
  void ParallelFor(std::size_t count, const Body& body);

  using FallibleBody = std::function<Status(std::size_t index, std::size_t worker)>;
  // Works like ParallelFor. After an error a worker skips the rest of its indices. Returns the error of one worker, or
  // Ok().
  Status TryParallelFor(std::size_t count, const FallibleBody& body);

 private:
  void Work(std::size_t worker);
  void TakeIndices(std::size_t worker);

  std::vector<std::thread> workers_;

  std::mutex mutex_;
  std::condition_variable start_;  // a new loop, or the end of the pool
  std::condition_variable done_;   // the last worker has left the loop
  // Guarded by mutex_; body_ and count_ do not change while a loop is on.
  std::size_t loops_ = 0;
  std::size_t busy_workers_ = 0;
  bool stop_ = false;
  const Body* body_ = nullptr;
  std::size_t count_ = 0;

  std::atomic<std::size_t> next_index_{0};
};

}  // namespace weightwire
