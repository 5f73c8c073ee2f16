// Running a follower on the caller's thread: step after step, waiting between polls, until told to end.
//
// Errors are retried as base/failure_policy.h says: transient ones soon, others slowly. The target stays exact
// while the loop waits. Two kinds of error end the loop. The first are those that repeating cannot help: another run, a
// newer format, a limit. The second is any error that is not transient before the follower was up to date once, because
// the operator is still watching then.
//
// Thread safety: one thread; the sleeper may be stopped by another one or a signal.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/failure_policy.h"
#include "base/random.h"
#include "base/result.h"
#include "follow/follower.h"
#include "runner/policy.h"

namespace weightwire {

struct FollowLoopOptions {
  // End once there is nothing newer.
  bool once = false;
  // Tell of an anchor that was loaded even if deltas that lead on from it are about to be applied.
  bool every_version = false;
  // Go no further than this version, and end once it, or a later one, is held.
  std::optional<Version> until;

  // Between two questions for a newer version, give or take a fifth, so that many followers do not ask in step.
  std::chrono::nanoseconds poll = kPollInterval;
  // The pauses after errors.
  BackoffPolicy backoff{kFirstFollowPause, kLastFollowPause, kSlowFollowPause};
  // With `once`, or before the follower was up to date once: give up when nothing but transient errors has happened for
  // this long. Afterwards, the target stays usable while the store is away, and the loop retries for as long as it
  // runs, unless `always_gives_up`.
  std::chrono::nanoseconds retry_for = kRetryFor;
  bool always_gives_up = false;
};

struct FollowLoopTools {
  const Clock* clock = nullptr;
  Sleeper* sleeper = nullptr;
  Random* random = nullptr;
};

// What the caller hears of. Any of them may be empty.
struct FollowLoopEvents {
  // After each step. False: end.
  std::function<bool(FollowerStep)> stepped;
  // The target holds another version. An error ends the loop. What a load leads to is told once it has led as far as
  // there is, or something goes wrong on the way: whoever loads weights is not to do it twice in a row.
  std::function<Status()> applied;
  // Something went wrong that is tried again; said once for each change of what it is. Nothing: it is over. So is it
  // said when the lease cannot be written, which stops nothing.
  std::function<void(const std::optional<Error>&)> troubled;
  // A step failed and will be repeated; called each time.
  std::function<void(const Error&)> failed;
};

enum class FollowEnd : std::uint8_t {
  kUpToDate,  // `once`: there is nothing newer
  kReached,   // `until`
  kStopped,   // by the sleeper or by `stepped`
};

// Gives no lease back: the caller decides whether the follower comes again.
Result<FollowEnd> RunFollower(Follower& follower, const FollowLoopOptions& options, const FollowLoopTools& tools,
                              const FollowLoopEvents& events);

}  // namespace weightwire
