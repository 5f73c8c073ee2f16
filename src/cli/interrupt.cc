#include "cli/interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

namespace weightwire {
namespace {

// All that a signal handler may touch.
std::atomic<int> caught_signal = 0;
std::atomic<int> signal_end = -1;
static_assert(std::atomic<int>::is_always_lock_free);
// What a guard that is gone has caught.
std::atomic<int> signal_to_raise = 0;
// What waiting looks at.
std::atomic<int> waiting_end = -1;

void Remember(int signal) {
  const int error = errno;
  caught_signal = signal;
  if (signal_end >= 0) static_cast<void>(!::write(signal_end, "", 1));
  errno = error;
}

}  // namespace

InterruptGuard::InterruptGuard(AtEnd at_end) : at_end_(at_end) {
  caught_signal = 0;
  // Without a pipe, waiting is only not cut short.
  if (::pipe2(wake_up_, O_CLOEXEC | O_NONBLOCK) == 0) {
    waiting_end = wake_up_[0];
    signal_end = wake_up_[1];
  }
  struct sigaction action {};
  action.sa_handler = Remember;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &old_interrupt_);
  ::sigaction(SIGTERM, &action, &old_terminate_);
}

InterruptGuard::~InterruptGuard() {
  ::sigaction(SIGINT, &old_interrupt_, nullptr);
  ::sigaction(SIGTERM, &old_terminate_, nullptr);
  signal_end = -1;
  waiting_end = -1;
  for (const int end : wake_up_) {
    if (end >= 0) ::close(end);
  }
  if (at_end_ == AtEnd::kRaise && caught_signal != 0) signal_to_raise = caught_signal.load();
}

Status InterruptGuard::Check() const {
  if (!interrupted()) return Ok();
  return Error(ErrorCode::kIo, "interrupted; nothing was written");
}

void InterruptGuard::RaiseCaught() {
  if (signal_to_raise != 0) ::raise(signal_to_raise);
}

bool InterruptGuard::interrupted() { return caught_signal != 0; }

bool InterruptGuard::WaitFor(std::chrono::nanoseconds duration) {
  using std::chrono::nanoseconds;
  const auto end = std::chrono::steady_clock::now() + duration;
  while (!interrupted()) {
    const nanoseconds left = end - std::chrono::steady_clock::now();
    if (left <= nanoseconds(0)) return true;
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    timespec limit{};
    limit.tv_sec = seconds.count();
    limit.tv_nsec = (left - seconds).count();
    pollfd wake_up{waiting_end, POLLIN, 0};  // ignored if negative
    static_cast<void>(::ppoll(&wake_up, 1, &limit, nullptr));
  }
  return false;
}

bool InterruptSleeper::SleepFor(std::chrono::nanoseconds duration) {
  if (end_.has_value())
    duration = std::min<std::chrono::nanoseconds>(duration, *end_ - std::chrono::steady_clock::now());
  return InterruptGuard::WaitFor(duration) && !IsOver();
}

}  // namespace weightwire
