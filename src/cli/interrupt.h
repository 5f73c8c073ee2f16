// Ctrl-C while something half-written lies on the disk: finish the portion at hand, clean up, and only then end.
#pragma once

#include <chrono>
#include <csignal>
#include <optional>

#include "base/clock.h"
#include "base/result.h"

namespace weightwire {

// While it exists, SIGINT and SIGTERM do not end the process but make Check fail; call it between portions. A second
// signal ends the process at once. When all is cleaned up and said, RaiseCaught ends the process by the signal that
// came, so that a shell sees what happened.
//
// At most one exists at a time: signal handlers belong to the process.
class InterruptGuard {
 public:
  // What becomes of a signal that came: kRaise for commands that were cut off; kForget for those that go on until they
  // are told to end, and have now done what they were to do.
  enum class AtEnd : unsigned char { kRaise, kForget };

  explicit InterruptGuard(AtEnd at_end = AtEnd::kRaise);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  [[nodiscard]] Status Check() const;
  [[nodiscard]] static bool interrupted();
  // Ends the process if a guard that is gone, of the kind kRaise, has caught a signal.
  static void RaiseCaught();

  // Waits; false as soon as a signal has come. Any thread may, and without a guard it just waits.
  [[nodiscard]] static bool WaitFor(std::chrono::nanoseconds duration);
  // A descriptor that becomes readable when a signal comes.
  [[nodiscard]] int wake_up() const { return wake_up_[0]; }

 private:
  const AtEnd at_end_;
  int wake_up_[2] = {-1, -1};  // a pipe, so that a signal ends waiting
  struct sigaction old_interrupt_ {};
  struct sigaction old_terminate_ {};
};

// Waits, for as long as no signal has come to the guard that exists just now. Any thread may.
class InterruptSleeper final : public Sleeper {
 public:
  InterruptSleeper() = default;
  // Never waits longer than this from now, all waits together.
  explicit InterruptSleeper(std::chrono::nanoseconds at_most) : end_(std::chrono::steady_clock::now() + at_most) {}

  // Returns false at the end of that time, too.
  [[nodiscard]] bool SleepFor(std::chrono::nanoseconds duration) override;
  [[nodiscard]] bool IsOver() const { return end_.has_value() && std::chrono::steady_clock::now() >= *end_; }

 private:
  std::optional<std::chrono::steady_clock::time_point> end_;
};

}  // namespace weightwire
