// Work that is cut into steps, done to its end: transient errors are retried for a while, and a signal ends it.
#pragma once

#include "base/failure_policy.h"
#include "base/result.h"
#include "cli/interrupt.h"
#include "cli/policy.h"

namespace weightwire {

// Decides after each step of some work whether the work continues.
class TransientRetries {
 public:
  // `interrupt` must outlive the object.
  explicit TransientRetries(const InterruptGuard& interrupt) : interrupt_(interrupt) {}

  // After a step with this result: Ok() if the work continues. A transient error is waited out first, with growing
  // pauses. Any other error ends the work, and so do kRetryAttempts transient ones in a row, and a signal.
  Status After(const Status& step) {
    if (step.ok()) {
      backoff_.Reset();
    } else {
      const auto pause = backoff_.Next(step.error());
      if (!IsTransient(step.error()) || backoff_.failures() >= kRetryAttempts) return step;
      static_cast<void>(interrupt_.WaitFor(pause));
    }
    // The caller says what is written by then.
    return interrupt_.interrupted() ? Status(Error(ErrorCode::kIo, "interrupted")) : Ok();
  }

 private:
  const InterruptGuard& interrupt_;
  Backoff backoff_{{.first = kFirstRetryWait, .last = kLastRetryWait}};
};

// Calls `step`, a Result<bool> function, until it returns true. Errors and signals are handled as above.
template <typename StepFunction>
Status RetryTransient(const InterruptGuard& interrupt, const StepFunction& step) {
  TransientRetries retries(interrupt);
  Status before = Ok();
  for (;;) {
    WW_RETURN_IF_ERROR(retries.After(before));
    const Result<bool> done = step();
    if (done.ok() && done.value()) return Ok();
    before = done.ok() ? Ok() : Status(done.error());
  }
}

}  // namespace weightwire
