#include "base/clock.h"

#include <algorithm>

namespace weightwire {

MonotonicTime SystemClock::Monotonic() const { return std::chrono::steady_clock::now().time_since_epoch(); }

WallTime SystemClock::Wall() const {
  return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

bool SystemSleeper::SleepFor(std::chrono::nanoseconds duration) {
  std::unique_lock lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  const bool whole = !end_.has_value() || now + duration <= *end_;
  const auto time = whole ? duration : std::max(*end_ - now, std::chrono::steady_clock::duration(0));
  return !stopped_.wait_for(lock, time, [this] { return stop_; }) && whole;
}

void SystemSleeper::EndBy(std::optional<std::chrono::steady_clock::time_point> end) {
  const std::lock_guard lock(mutex_);
  end_ = end;
}

void SystemSleeper::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
}

}  // namespace weightwire
