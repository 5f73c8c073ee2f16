#include "runner/follow_loop.h"

#include <algorithm>
#include <utility>

#include "base/failure_policy.h"

namespace weightwire {
namespace {

// Waiting does not help: what was asked for makes no sense here, or never will.
bool IsHopeless(const Error& error) {
  return error.code() == ErrorCode::kMismatch || error.code() == ErrorCode::kUnsupported ||
         error.code() == ErrorCode::kInvalidArgument;
}

// A fifth more or less.
std::chrono::nanoseconds WithJitter(std::chrono::nanoseconds duration, Random& random) {
  const auto fifth = static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count() / 5, 0));
  const auto shift = static_cast<std::int64_t>(random.Below(2 * fifth + 1)) - static_cast<std::int64_t>(fifth);
  return duration + std::chrono::nanoseconds(shift);
}

// What went wrong lately, and how long to wait for it.
class Trouble {
 public:
  Trouble(const FollowLoopOptions& options, const FollowLoopEvents& events) : options_(options), events_(events) {}

  void Add(const Error& error) {
    ++in_a_row_;
    const bool is_news = !last_.has_value() || last_->message() != error.message();
    last_ = error;
    if (is_news && events_.troubled) events_.troubled(last_);
  }
  // Whether a step that went well shows that it is over. A lease that could be written says nothing about what failed,
  // a part fetched, say; nor does what was read from the store about a disk.
  [[nodiscard]] bool IsEndedBy(FollowerStep step) const {
    if (step == FollowerStep::kLease) return false;
    const bool only_reads = step == FollowerStep::kRecord || step == FollowerStep::kPlan ||
                            step == FollowerStep::kFetch || step == FollowerStep::kStage;
    return !only_reads || !last_.has_value() || last_->code() != ErrorCode::kIo;
  }
  void End() {
    in_a_row_ = 0;
    if (std::exchange(last_, std::nullopt).has_value() && events_.troubled) events_.troubled(std::nullopt);
  }
  // A lease that cannot be written stops nothing; it is only said, and said again if the reason changes.
  void SeeLease(const std::optional<Error>& now) {
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
  [[nodiscard]] bool IsOutOfPatience() const { return in_a_row_ >= options_.patience; }
  // REQUIRES: there is some.
  [[nodiscard]] std::chrono::nanoseconds Pause() const {
    if (!IsTransient(*last_)) return options_.slow_pause;
    constexpr int kMostDoublings = 20;
    const auto factor = std::int64_t{1} << std::min(in_a_row_ - 1, kMostDoublings);
    return std::min(options_.first_pause * factor, options_.last_pause);
  }

 private:
  const FollowLoopOptions& options_;
  const FollowLoopEvents& events_;
  std::optional<Error> last_;
  std::optional<Error> lease_;  // why there is none
  int in_a_row_ = 0;
};

}  // namespace

Result<FollowEnd> RunFollower(Follower& follower, const FollowLoopOptions& options, const FollowLoopTools& tools,
                              const FollowLoopEvents& events) {
  Trouble trouble(options, events);
  bool has_been_up_to_date = false;
  // Not beyond it; so the follower comes to rest there, and what is held is synced when it does.
  if (options.until.has_value()) follower.StandStill(options.until);
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
    const auto step = follower.Step();
    trouble.SeeLease(follower.lease_error());
    if (!step.ok()) {
      const Error& error = step.error();
      if (untold) WW_RETURN_IF_ERROR(tell());
      if (IsHopeless(error)) return error;
      const bool watched = options.once || !has_been_up_to_date;
      if (watched && !IsTransient(error)) return error;
      trouble.Add(error);
      if (watched && trouble.IsOutOfPatience()) return error;
      if (!tools.sleeper->SleepFor(WithJitter(trouble.Pause(), *tools.random))) return FollowEnd::kStopped;
      continue;
    }
    if (trouble.IsEndedBy(step.value())) trouble.End();
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
