// A clock and a sleeper for tests: time passes only when a test says so.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace weightwire {

// A clock that stands still until it is moved. Wall and monotonic time move together.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(WallTime start = WallTime(std::chrono::hours(24))) : wall_start_(start) {}

  [[nodiscard]] MonotonicTime Monotonic() const override { return std::chrono::nanoseconds(passed_ns_.load()); }
  [[nodiscard]] WallTime Wall() const override {
    return wall_start_ + std::chrono::duration_cast<std::chrono::milliseconds>(Monotonic());
  }
  void Advance(std::chrono::nanoseconds duration) { passed_ns_ += duration.count(); }

 private:
  const WallTime wall_start_;
  std::atomic<std::int64_t> passed_ns_{0};
};

// Waiting moves a manual clock and takes no time.
class ManualSleeper final : public Sleeper {
 public:
  // `clock` must outlive the sleeper.
  explicit ManualSleeper(ManualClock* clock) : clock_(clock) {}
  [[nodiscard]] bool SleepFor(std::chrono::nanoseconds duration) override {
    clock_->Advance(duration);
    return true;
  }

 private:
  ManualClock* const clock_;
};

}  // namespace weightwire
