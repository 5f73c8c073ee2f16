#include "cli/interrupt.h"

namespace weightwire {
namespace {

// All that a signal handler may touch.
volatile std::sig_atomic_t caught_signal = 0;

void Remember(int signal) { caught_signal = signal; }

}  // namespace

InterruptGuard::InterruptGuard() {
  caught_signal = 0;
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
  if (caught_signal != 0) ::raise(static_cast<int>(caught_signal));
}

Status InterruptGuard::Check() const {
  if (caught_signal == 0) return Ok();
  return Error(ErrorCode::kIo, "interrupted; nothing was written");
}

}  // namespace weightwire
