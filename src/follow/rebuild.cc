#include "follow/rebuild.h"

#include <fmt/format.h>

#include "base/failure_policy.h"

namespace weightwire {
namespace {

// One after another, of requests that the store has tried again for long enough each: what was fetched is not lost to
// a store that is away for a few minutes.
constexpr int kMostFailures = 10;

}  // namespace

Status Rebuild(const Run& run, Version version, Target& target, const Id& id, const FollowerOptions& options,
               const FollowerTools& tools) {
  Follower follower(run, target, id, options, tools);
  follower.Pin(version, /*back=*/true);
  const auto go = [&]() -> Status {
    for (int failures = 0;;) {
      const auto stepped = follower.Step();
      if (!stepped.ok()) {
        if (!IsTransient(stepped.error()) || ++failures == kMostFailures) return stepped.error();
        continue;
      }
      failures = 0;
      const FollowerStep step = stepped.value();
      const bool there = target.held().has_value() && target.held()->version == version;
      if (there && !follower.HasStaged()) return Ok();
      if (step == FollowerStep::kUpToDate) {
        return Error(ErrorCode::kNotFound, fmt::format("there is no version {} in {}", version, run.store().Name()));
      }
    }
  };
  Status rebuilt = go();
  // Whatever came of it: who tries again may do so under another name. A lease that cannot be taken away expires.
  static_cast<void>(follower.ReleaseLease());
  return rebuilt;
}

}  // namespace weightwire
