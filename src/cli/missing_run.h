// Following a run that is not there yet.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "log/run.h"
#include "runner/policy.h"
#include "store/store.h"

namespace weightwire {

struct MissingRunOptions {
  bool may_make = true;  // otherwise only waited for
  // Between two looks.
  std::chrono::nanoseconds poll = kPollInterval;
};

// Makes the run, or waits for somebody else to where that is not allowed here, or where whoever publishes has to decide
// about it (a store that cannot keep two writers apart). `say` hears once that it waits. Nothing if the sleeper was
// stopped first.
Result<std::optional<Run>> MakeOrAwaitRun(Store& store, const MissingRunOptions& options, Sleeper& sleeper,
                                          const std::function<void(const std::string&)>& say);

}  // namespace weightwire
