// Ctrl-C while something half-written lies on the disk: finish the piece at hand, clean up, and only then end.
#pragma once

#include <chrono>
#include <csignal>

#include "base/clock.h"
#include "base/result.h"

namespace weightwire {

// While it exists, SIGINT and SIGTERM do not end the process but make Check fail; when it goes, a signal that came is
// raised again. So declare it before what has to be cleaned up, and call Check between pieces. A second signal ends the
// process at once.
//
// At most one exists at a time: signal handlers belong to the process.
class InterruptGuard {
 public:
  // What happens at the end if a signal came: kRaise for commands that were cut off; kForget for those that go on until
  // they are told to end, and have now done what they were to do.
  enum class AtEnd : unsigned char { kRaise, kForget };

  explicit InterruptGuard(AtEnd at_end = AtEnd::kRaise);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  [[nodiscard]] Status Check() const;
  [[nodiscard]] bool interrupted() const;

  // Waits; false as soon as a signal has come.
  [[nodiscard]] bool WaitFor(std::chrono::nanoseconds duration) const;

 private:
  const AtEnd at_end_;
  int wake_up_[2] = {-1, -1};  // a pipe, so that a signal ends waiting
  struct sigaction old_interrupt_ {};
  struct sigaction old_terminate_ {};
};

// Waits until a signal comes. The guard must outlive it.
class InterruptSleeper final : public Sleeper {
 public:
  explicit InterruptSleeper(const InterruptGuard& guard) : guard_(guard) {}
  [[nodiscard]] bool SleepFor(std::chrono::nanoseconds duration) override { return guard_.WaitFor(duration); }

 private:
  const InterruptGuard& guard_;
};

}  // namespace weightwire
