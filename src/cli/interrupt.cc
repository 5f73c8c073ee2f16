#include "cli/interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace weightwire {
namespace {

// All that a signal handler may touch.
volatile std::sig_atomic_t caught_signal = 0;
volatile std::sig_atomic_t wake_up_end = -1;

void Remember(int signal) {
  const int error = errno;
  caught_signal = signal;
  if (wake_up_end >= 0) static_cast<void>(!::write(static_cast<int>(wake_up_end), "", 1));
  errno = error;
}

}  // namespace

InterruptGuard::InterruptGuard(AtEnd at_end) : at_end_(at_end) {
  caught_signal = 0;
  // Without a pipe, waiting is only not cut short.
  if (::pipe2(wake_up_, O_CLOEXEC | O_NONBLOCK) == 0) wake_up_end = wake_up_[1];
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
  wake_up_end = -1;
  for (const int end : wake_up_) {
    if (end >= 0) ::close(end);
  }
  if (at_end_ == AtEnd::kRaise && caught_signal != 0) ::raise(static_cast<int>(caught_signal));
}

Status InterruptGuard::Check() const {
  if (!interrupted()) return Ok();
  return Error(ErrorCode::kIo, "interrupted; nothing was written");
}

bool InterruptGuard::interrupted() const { return caught_signal != 0; }

bool InterruptGuard::WaitFor(std::chrono::nanoseconds duration) const {
  using std::chrono::nanoseconds;
  const auto end = std::chrono::steady_clock::now() + duration;
  while (!interrupted()) {
    const nanoseconds left = end - std::chrono::steady_clock::now();
    if (left <= nanoseconds(0)) return true;
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    timespec limit{};
    limit.tv_sec = seconds.count();
    limit.tv_nsec = (left - seconds).count();
    pollfd wake_up{wake_up_[0], POLLIN, 0};
    static_cast<void>(::ppoll(&wake_up, 1, &limit, nullptr));
  }
  return false;
}

}  // namespace weightwire
