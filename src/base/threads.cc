#include "base/threads.h"

#include <system_error>

#include "base/check.h"
#include "base/signals_blocked.h"

namespace weightwire {

ThreadPool::ThreadPool(std::size_t threads) {
  WW_CHECK(threads >= 1);
  workers_.reserve(threads - 1);
  const SignalsBlocked blocked;
  try {
    for (std::size_t worker = 1; worker < threads; ++worker) {
      workers_.emplace_back([this, worker] { Work(worker); });
    }
  } catch (const std::system_error&) {
    // The system has no more to give: those that are there do the work.
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(std::size_t count, const Body& body) {
  // Waking threads costs more than a single item can gain.
  if (workers_.empty() || count <= 1) {
    for (std::size_t index = 0; index < count; ++index) body(index, 0);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    WW_CHECK(body_ == nullptr);  // a loop within a loop
    body_ = &body;
    count_ = count;
    next_index_.store(0, std::memory_order_relaxed);
    busy_workers_ = workers_.size();
    ++loops_;
  }
  start_.notify_all();
  TakeIndices(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_workers_ == 0; });
  body_ = nullptr;
}

Status ThreadPool::TryParallelFor(std::size_t count, const FallibleBody& body) {
  std::vector<Status> results(threads());
  ParallelFor(count, [&](std::size_t index, std::size_t worker) {
    if (results[worker].ok()) results[worker] = body(index, worker);
  });
  for (Status& result : results) {
    if (!result.ok()) return std::move(result);
  }
  return Ok();
}

void ThreadPool::Work(std::size_t worker) {
  std::size_t seen_loops = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    start_.wait(lock, [&] { return stop_ || loops_ != seen_loops; });
    if (stop_) return;
    seen_loops = loops_;
    lock.unlock();
    TakeIndices(worker);
    lock.lock();
    if (--busy_workers_ == 0) done_.notify_one();
  }
}

void ThreadPool::TakeIndices(std::size_t worker) {
  while (true) {
    const std::size_t index = next_index_.fetch_add(1, std::memory_order_relaxed);
    if (index >= count_) return;
    (*body_)(index, worker);
  }
}

}  // namespace weightwire
