#include "runner/follow_loop.h"

#include <algorithm>
#include <utility>

namespace weightwire {
namespace {

// A fifth more or less.
std::chrono::nanoseconds WithJitter(std::chrono::nanoseconds duration, Random& random) {
  const auto fifth = static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count() / 5, 0));
  const auto shift = static_cast<std::int64_t>(random.Below(2 * fifth + 1)) - static_cast<std::int64_t>(fifth);
  return duration + std::chrono::nanoseconds(shift);
}

// Returns true if a step touches nothing but the store and memory.
bool OnlyReadsStore(FollowerStep step) {
  switch (step) {
    case FollowerStep::kStarted:
    case FollowerStep::kRecord:
    case FollowerStep::kPlan:
    case FollowerStep::kFetch:
    case FollowerStep::kDetour:
    case FollowerStep::kStage:
      return true;
    default:
      return false;
  }
}

// Reports errors that are retried to the caller: each once, and when it is over.
class ErrorReport {
 public:
  explicit ErrorReport(const FollowLoopEvents& events) : events_(events) {}

  void Add(const Error& error) {
    const bool is_news = !last_.has_value() || last_->message() != error.message();
    last_ = error;
    if (is_news && events_.troubled) events_.troubled(last_);
  }
  // Returns true if a successful step shows that the error is over. A lease that was written shows nothing about a part
  // that could not be fetched; nor does a read from the store about a disk. kNothingNewer shows nothing about the
  // target, and a step that does follows it.
  [[nodiscard]] bool IsEndedBy(FollowerStep step) const {
    if (step == FollowerStep::kLease || step == FollowerStep::kNothingNewer) return false;
    return !OnlyReadsStore(step) || !last_.has_value() || last_->code() != ErrorCode::kIo;
  }
  void End() {
    if (std::exchange(last_, std::nullopt).has_value() && events_.troubled) events_.troubled(std::nullopt);
  }
  // A lease that cannot be written stops nothing, so its error is only reported.
  void SetLeaseError(const std::optional<Error>& now) {
    const bool same =
        lease_.has_value() == now.has_value() && (!now.has_value() || lease_->message() == now->message());
    if (same) return;
    lease_ = now;
    if (!events_.troubled) return;
    if (now.has_value()) {
      events_.troubled(now->In("no lease protects from gc what is still needed"));
    } else if (!last_.has_value()) {
      events_.troubled(std::nullopt);
    }
  }

 private:
  const FollowLoopEvents& events_;
  std::optional<Error> last_;
  std::optional<Error> lease_;  // why there is none
};

}  // namespace

Result<FollowEnd> RunFollower(Follower& follower, const FollowLoopOptions& options, const FollowLoopTools& tools,
                              const FollowLoopEvents& events) {
  ErrorReport report(events);
  Backoff backoff(options.backoff);
  bool has_been_up_to_date = false;
  Outage outage;
  // The follower goes no further, so that it has nothing to do there and the target syncs the version.
  follower.LimitTo(options.until);
  const auto reached = [&] {
    const auto held = follower.status().held;
    return options.until.has_value() && held.has_value() && *held >= *options.until;
  };
  std::uint64_t loads = follower.status().anchors_loaded;
  bool untold = false;  // the target holds a version nobody was told of
  const auto tell = [&]() -> Status {
    untold = false;
    return events.applied ? events.applied() : Ok();
  };
  for (;;) {
    const MonotonicTime began = tools.clock->Monotonic();
    const auto step = follower.Step();
    report.SetLeaseError(follower.lease_error());
    if (!step.ok()) {
      const Error& error = step.error();
      if (untold) WW_RETURN_IF_ERROR(tell());
      if (ReactionTo(error) == Reaction::kGiveUp) return error;
      const bool is_watched = options.once || !has_been_up_to_date;
      if (is_watched && !IsTransient(error)) return error;
      if (events.failed) events.failed(error);
      report.Add(error);
      const auto pause = backoff.Next(error);
      outage.Add(error, began);
      const bool may_give_up = is_watched || options.always_gives_up;
      auto wait = WithJitter(pause, *tools.random);
      if (may_give_up && IsTransient(error)) {
        const auto left = outage.Left(options.retry_for, tools.clock->Monotonic());
        if (left <= std::chrono::nanoseconds(0)) return error;
        wait = std::min(wait, left);
      }
      if (!tools.sleeper->SleepFor(wait)) return FollowEnd::kStopped;
      continue;
    }
    if (report.IsEndedBy(step.value())) {
      report.End();
      backoff.Reset();
      outage.End();
    }
    if (events.stepped && !events.stepped(step.value())) return FollowEnd::kStopped;
    if (step.value() == FollowerStep::kApply) {
      const FollowerStatus status = follower.status();
      const bool loaded = std::exchange(loads, status.anchors_loaded) != status.anchors_loaded;
      untold = loaded && !options.every_version && status.newest > status.held;
      if (!untold) WW_RETURN_IF_ERROR(tell());
    }
    if (step.value() != FollowerStep::kUpToDate) continue;
    if (untold) WW_RETURN_IF_ERROR(tell());
    has_been_up_to_date = true;
    if (reached()) return FollowEnd::kReached;
    if (options.once) return FollowEnd::kUpToDate;
    if (!tools.sleeper->SleepFor(WithJitter(options.poll, *tools.random))) return FollowEnd::kStopped;
  }
}

}  // namespace weightwire
