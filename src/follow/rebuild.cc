#include "follow/rebuild.h"

#include <fmt/format.h>

#include "base/failure_policy.h"
#include "follow/policy.h"

namespace weightwire {

Status StepUntilUpToDate(Follower& follower, const AfterStep& after_step) {
  for (;;) {
    const Result<FollowerStep> step = follower.Step();
    if (after_step) {
      WW_RETURN_IF_ERROR(after_step(step));
    } else if (!step.ok()) {
      return step.error();
    }
    if (step.ok() && step.value() == FollowerStep::kUpToDate) return Ok();
  }
}

Status FollowTo(Follower& follower, std::optional<Version> version, const AfterStep& after_step) {
  if (version.has_value()) follower.Pin(*version);
  WW_RETURN_IF_ERROR(StepUntilUpToDate(follower, after_step));
  const std::optional<Version> held = follower.status().held;
  if (held.has_value() && held == version.value_or(*held)) return Ok();
  return Error(ErrorCode::kNotFound, fmt::format("the run at {} has no version {}", follower.run().store().Name(),
                                                 version.has_value() ? std::to_string(*version) : std::string("yet")));
}

Status Rebuild(const Run& run, Version version, Target& target, const Id& id, const FollowerOptions& options,
               const FollowerTools& tools) {
  Follower follower(run, target, id, options, tools);
  int errors = 0;
  Status rebuilt = FollowTo(follower, version, [&](const Result<FollowerStep>& step) -> Status {
    if (step.ok()) {
      errors = 0;
      return Ok();
    }
    const bool is_over = !IsTransient(step.error()) || ++errors == kRebuildAttempts;
    return is_over ? Status(step.error()) : Ok();
  });
  // A lease that cannot be removed expires. The caller may try again with another id.
  static_cast<void>(follower.ReleaseLease());
  return rebuilt;
}

}  // namespace weightwire
