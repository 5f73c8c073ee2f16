// Threads that work for one owner, and the lock over its state.
//
// The owner's state is looked at and changed with the lock held, and whoever changes it notifies; whoever waits, waits
// for that. Threads end after what they are at, once they are stopped.
//
// Thread safety: all of it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/signals_blocked.h"

namespace weightwire {

class LaneThreads {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // `clock` must outlive it.
  explicit LaneThreads(const Clock& clock) : clock_(clock) {}
  ~LaneThreads() { Stop(); }
  LaneThreads(const LaneThreads&) = delete;
  LaneThreads& operator=(const LaneThreads&) = delete;

  [[nodiscard]] Lock Take() const { return Lock(mutex_); }
  void Notify() const { changed_.notify_all(); }
  [[nodiscard]] bool stopped() const { return stop_; }  // REQUIRES: the lock is held

  void Wait(Lock& lock) const { changed_.wait(lock); }
  template <typename Condition>
  void WaitFor(Lock& lock, std::optional<std::chrono::nanoseconds> at_most, Condition&& condition) const {
    if (at_most.has_value()) {
      changed_.wait_for(lock, *at_most, std::forward<Condition>(condition));
    } else {
      changed_.wait(lock, std::forward<Condition>(condition));
    }
  }

  // One more thread, which does the publisher's jobs of a lane. `before` is called, with the lock held, each time
  // before it is asked for one. The publisher must live until Stop.
  template <typename Publisher, typename Lane, typename Before>
  void Run(Publisher& publisher, Lane lane, Before before) {
    const SignalsBlocked blocked;
    threads_.emplace_back([this, &publisher, lane, before] {
      Lock lock = Take();
      while (!stop_) {
        before();
        auto job = publisher.Next(lane);
        if (!job.has_value()) {
          if (const auto due = publisher.Due(lane); due.has_value()) {
            changed_.wait_for(lock, *due - clock_.Monotonic());
          } else {
            changed_.wait(lock);
          }
          continue;
        }
        lock.unlock();
        publisher.Execute(*job);
        lock.lock();
        publisher.Finish(std::move(*job));
        Notify();
      }
    });
  }

  void Stop() {
    {
      const Lock lock = Take();
      stop_ = true;
    }
    Notify();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  const Clock& clock_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool stop_ = false;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace weightwire
