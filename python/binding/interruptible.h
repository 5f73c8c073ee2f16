// Long work of the core that Ctrl-C ends.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <functional>

#include "base/clock.h"
#include "base/result.h"

namespace weightwire::python {

using std::chrono::nanoseconds;

// Does the work on a thread of its own and raises its error. On Ctrl-C the sleeper is stopped for good, so that nothing
// is tried again; the work then ends soon, and what it made must not be used. REQUIRES: the GIL is not held.
void RunInterruptibly(SystemSleeper& sleeper, const std::function<Status()>& work);

}  // namespace weightwire::python
