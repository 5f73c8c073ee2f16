// Work that is cut into steps, done to its end: transient errors are retried for a while, and a signal ends it.
#pragma once

#include "base/failure_policy.h"
#include "base/result.h"
#include "cli/interrupt.h"
#include "cli/policy.h"

namespace weightwire {

// Calls `step` (a Result<bool> function) until it returns true. Retries transient errors, with growing pauses, up to
// kRetryAttempts times in a row; other errors end it. So does a signal.
template <typename StepFunction>
Status RetryTransient(const InterruptGuard& interrupt, const StepFunction& step) {
  Backoff backoff({.first = kFirstRetryWait, .last = kLastRetryWait});
  for (;;) {
    // What is written by then is up to the caller to say.
    if (interrupt.interrupted()) return Error(ErrorCode::kIo, "interrupted");
    const Result<bool> done = step();
    if (done.ok()) {
      if (done.value()) return Ok();
      backoff.Reset();
      continue;
    }
    const auto pause = backoff.Next(done.error());
    if (!IsTransient(done.error()) || backoff.failures() == kRetryAttempts) return done.error();
    static_cast<void>(interrupt.WaitFor(pause));
  }
}

}  // namespace weightwire
