#include "base/clock.h"

namespace weightwire {

std::chrono::nanoseconds SystemClock::Monotonic() const { return std::chrono::steady_clock::now().time_since_epoch(); }

WallTime SystemClock::Wall() const {
  return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

bool SystemSleeper::SleepFor(std::chrono::nanoseconds duration) {
  std::unique_lock lock(mutex_);
  return !stopped_.wait_for(lock, duration, [this] { return stop_; });
}

void SystemSleeper::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
}

}  // namespace weightwire
