// Runs a follower until its target holds a version: the one loop for callers that want a version once, and do not keep
// following (runner/follow_loop.h does that).
#pragma once

#include <functional>
#include <optional>

#include "base/result.h"
#include "follow/follower.h"
#include "follow/targets/memory_target.h"  // the target that callers of Rebuild use

namespace weightwire {

// Called after each step with its result. Ok(): step again; after an error that repeats the step, so the function may
// wait first. An error ends the run of steps with that error.
using AfterStep = std::function<Status(const Result<FollowerStep>&)>;

// Steps until the follower is up to date. Without `after_step`, the first error ends it.
Status StepUntilUpToDate(Follower& follower, const AfterStep& after_step = nullptr);

// Brings the target to exactly `version`, also back from a later one; without a value, to the newest version.
// kNotFound if the run has no such version. REQUIRES: the follower applies at once.
Status FollowTo(Follower& follower, std::optional<Version> version, const AfterStep& after_step = nullptr);

// Does the same with a follower of its own, and removes its lease: for a publisher that has lost its base copy. After
// an error the target keeps what it has, and a further call continues from there.
Status Rebuild(const Run& run, Version version, Target& target, const Id& id, const FollowerOptions& options,
               const FollowerTools& tools);

}  // namespace weightwire
