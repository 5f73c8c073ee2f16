// Time and waiting, injected. Code that needs either takes a Clock or a Sleeper, so that tests and simulations decide
// how time passes and nothing has to wait for real.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

namespace weightwire {

// A point in the time of day of some machine, ours or a store's. Two machines' clocks are never compared.
using WallTime = std::chrono::sys_time<std::chrono::milliseconds>;

// A point in the time of Clock::Monotonic.
using MonotonicTime = std::chrono::nanoseconds;

// Thread safety: all calls may be made by several threads.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  virtual ~Clock() = default;

  // Time since some fixed start. Never goes back; for deadlines and durations.
  [[nodiscard]] virtual MonotonicTime Monotonic() const = 0;

  // This machine's time of day. May jump; only for people, signatures and expiry dates given by others.
  [[nodiscard]] virtual WallTime Wall() const = 0;
};

class SystemClock final : public Clock {
 public:
  [[nodiscard]] MonotonicTime Monotonic() const override;
  [[nodiscard]] WallTime Wall() const override;
};

// Waits. Thread safety as Clock's.
class Sleeper {
 public:
  Sleeper() = default;
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  virtual ~Sleeper() = default;

  // False when waiting was cut short because the program is to end: give up instead of trying again.
  [[nodiscard]] virtual bool SleepFor(std::chrono::nanoseconds duration) = 0;
};

// Waits for real. Stop ends all waiting, now and later; EndBy at that moment, until it is told otherwise (nothing: no
// more).
class SystemSleeper final : public Sleeper {
 public:
  [[nodiscard]] bool SleepFor(std::chrono::nanoseconds duration) override;
  void Stop();
  void EndBy(std::optional<std::chrono::steady_clock::time_point> end);

 private:
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::optional<std::chrono::steady_clock::time_point> end_;
};

}  // namespace weightwire
