// Work that is cut into steps, done to its end: transient errors are retried for a while, and a signal ends it.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/failure_policy.h"
#include "base/result.h"
#include "cli/interrupt.h"
#include "cli/policy.h"

namespace weightwire {

// Decides after each step of some work whether the work continues.
class TransientRetries {
 public:
  // `interrupt` must outlive the object. `retry_for` is what --retry-for says.
  TransientRetries(const InterruptGuard& interrupt, std::chrono::nanoseconds retry_for)
      : interrupt_(interrupt), retry_for_(retry_for) {}

  // After a step with this result: Ok() if the work continues. A transient error is waited out first, with growing
  // pauses. Any other error ends the work, and so do a signal and steps that have only failed for `retry_for`.
  Status After(const Status& step) {
    if (step.ok()) {
      backoff_.Reset();
      outage_.End();
    } else {
      if (!IsTransient(step.error())) return step;
      outage_.Add(step.error(), step_began_);
      const auto pause = backoff_.Next(step.error());
      const auto left = outage_.Left(retry_for_, clock_.Monotonic());
      if (left <= std::chrono::nanoseconds(0)) return step;
      static_cast<void>(interrupt_.WaitFor(std::min<std::chrono::nanoseconds>(pause, left)));
    }
    step_began_ = clock_.Monotonic();
    // The caller says what is written by then.
    return interrupt_.interrupted() ? Status(Error(ErrorCode::kIo, "interrupted")) : Ok();
  }

 private:
  const InterruptGuard& interrupt_;
  const std::chrono::nanoseconds retry_for_;
  Backoff backoff_{{.first = kFirstRetryWait, .last = kLastRetryWait}};
  SystemClock clock_;
  MonotonicTime step_began_ = clock_.Monotonic();
  Outage outage_;
};

// Calls `step`, a Result<bool> function, until it returns true. Errors and signals are handled as above.
template <typename StepFunction>
Status RetryTransient(const InterruptGuard& interrupt, std::chrono::nanoseconds retry_for, const StepFunction& step) {
  TransientRetries retries(interrupt, retry_for);
  Status before = Ok();
  for (;;) {
    WW_RETURN_IF_ERROR(retries.After(before));
    const Result<bool> done = step();
    if (done.ok() && done.value()) return Ok();
    before = done.ok() ? Ok() : Status(done.error());
  }
}

}  // namespace weightwire
