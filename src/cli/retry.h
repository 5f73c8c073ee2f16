// Work that is cut into steps, done to its end: what may pass is waited for a while, and a signal ends it.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/result.h"
#include "cli/interrupt.h"

namespace weightwire {

// Calls `step` (a Result<bool> function) until it says true. Errors that may pass are tried again, with growing pauses,
// so many times in a row; others end it. So does a signal.
template <typename StepFunction>
Status RetryTransient(const InterruptGuard& interrupt, const StepFunction& step) {
  constexpr int kAttempts = 6;
  constexpr auto kFirstPause = std::chrono::milliseconds(250);
  int failures = 0;
  for (;;) {
    // What is written by then is up to the caller to say.
    if (interrupt.interrupted()) return Error(ErrorCode::kIo, "interrupted");
    const Result<bool> done = step();
    if (done.ok()) {
      if (done.value()) return Ok();
      failures = 0;
      continue;
    }
    if (!MayPass(done.error()) || ++failures >= kAttempts) return done.error();
    static_cast<void>(interrupt.WaitFor(kFirstPause * (1 << failures)));
  }
}

}  // namespace weightwire
