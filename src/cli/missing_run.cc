#include "cli/missing_run.h"

#include <fmt/format.h>

#include <utility>

#include "base/failure_policy.h"
#include "runner/init_run.h"

namespace weightwire {

Result<std::optional<Run>> MakeOrAwaitRun(Store& store, const MissingRunOptions& options, Sleeper& sleeper,
                                          const std::function<void(const std::string&)>& say) {
  if (options.may_make) {
    auto made = InitRun(store, /*single_writer=*/false, nullptr);
    if (made.ok()) {
      say(fmt::format("there was no run at {}; made one, and waiting for its first publisher", store.Name()));
      return std::optional(std::move(made).value());
    }
    const ErrorCode code = made.error().code();
    if (code != ErrorCode::kRefused && code != ErrorCode::kUnsupported) return made.error();
  }
  say(fmt::format("there is no run at {} yet; waiting for its first publisher", store.Name()));
  while (sleeper.SleepFor(options.poll)) {
    auto run = Run::Open(store);
    if (run.ok()) return std::optional(std::move(run).value());
    if (run.error().code() != ErrorCode::kNotFound && !IsTransient(run.error())) return run.error();
  }
  return std::optional<Run>();
}

}  // namespace weightwire
