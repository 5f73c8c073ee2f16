// The failure policy: what a caller does about an error, and how long it waits before it tries again.
//
// Every component that retries something asks ReactionTo() and waits with a Backoff, so that an error has the same
// meaning everywhere. Each caller chooses how long it tries; ARCHITECTURE.md, "Timeouts, retries and limits", lists
// that. store/http/retryable_status.h says which HTTP statuses become transient errors.
//
// Thread safety: functions are pure. A Backoff belongs to one thread at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/error.h"
#include "base/policy.h"
#include "base/random.h"

namespace weightwire {

enum class Reaction : std::uint8_t {
  kRetrySoon,    // the network or the service failed: the same request may succeed in a moment
  kRetrySlowly,  // a person must act first (credentials, permissions, a full disk); then the same request succeeds
  kFetchAgain,   // the object is missing or damaged: fetch it again, or reach the version by another path
  kGiveUp,       // repeating the request cannot help
};

[[nodiscard]] constexpr Reaction ReactionTo(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUnavailable:
    case ErrorCode::kUnknownOutcome:
      return Reaction::kRetrySoon;
    case ErrorCode::kIo:
    case ErrorCode::kRefused:
      return Reaction::kRetrySlowly;
    case ErrorCode::kNotFound:
    case ErrorCode::kCorrupt:
      return Reaction::kFetchAgain;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kMismatch:
    case ErrorCode::kUnsupported:
    case ErrorCode::kLimit:
    case ErrorCode::kConflict:
    case ErrorCode::kTimeout:
      return Reaction::kGiveUp;
  }
  return Reaction::kGiveUp;
}

[[nodiscard]] inline Reaction ReactionTo(const Error& error) { return ReactionTo(error.code()); }

// True if the same request may succeed in a moment, without anyone acting.
[[nodiscard]] inline bool IsTransient(const Error& error) { return ReactionTo(error) == Reaction::kRetrySoon; }

// True if the same request may succeed later, soon or after a person has acted.
[[nodiscard]] inline bool MaySucceedLater(const Error& error) {
  return ReactionTo(error) == Reaction::kRetrySoon || ReactionTo(error) == Reaction::kRetrySlowly;
}

// True if an object was read, but its bytes are damaged, too large or need a newer weightwire. This object is of no
// use; the store and the request are fine. Not true if the object is missing.
[[nodiscard]] inline bool IsUnreadable(const Error& error) {
  return error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kLimit ||
         error.code() == ErrorCode::kUnsupported;
}

// The pauses between the attempts at one thing.
struct BackoffPolicy {
  std::chrono::nanoseconds first = kDefaultFirstPause;  // after the first failure; doubled after each further one
  std::chrono::nanoseconds last = kDefaultLastPause;    // the doubling ends here
  std::chrono::nanoseconds slow = kDefaultSlowPause;    // after an error that is not transient
};

class Backoff {
 public:
  explicit Backoff(const BackoffPolicy& policy) : policy_(policy) {}

  // Counts a failure and returns how long to wait before the next attempt.
  [[nodiscard]] std::chrono::nanoseconds Next(const Error& error) {
    return IsTransient(error) ? Next() : (++failures_, policy_.slow);
  }
  // The same for a failure that is known to be transient.
  [[nodiscard]] std::chrono::nanoseconds Next() {
    constexpr int kMaxDoublings = 20;  // keeps the product below 2^63 ns for any sensible first pause
    const auto factor = std::int64_t{1} << std::min(failures_++, kMaxDoublings);
    return std::min(policy_.last, policy_.first * factor);
  }
  // The same, shortened by a random part of up to a half, so that many clients do not return at the same time.
  [[nodiscard]] std::chrono::nanoseconds Next(Random& random) {
    const std::chrono::nanoseconds pause = Next();
    return pause - std::chrono::nanoseconds(random.Below(static_cast<std::uint64_t>(pause.count() / 2) + 1));
  }
  // An attempt succeeded.
  void Reset() { failures_ = 0; }

  [[nodiscard]] int failures() const { return failures_; }

 private:
  BackoffPolicy policy_;
  int failures_ = 0;
};

// How long some work has met nothing but transient errors.
class Outage {
 public:
  // The work failed; what failed began at that time. An error of another kind ends the outage.
  void Add(const Error& error, std::chrono::nanoseconds began) {
    if (!lasts_) began_ = began;
    lasts_ = IsTransient(error);
  }
  // The work succeeded.
  void End() { lasts_ = false; }

  // How long the outage may still last, if it ends the work after `limit`; all of it where there is no outage.
  [[nodiscard]] std::chrono::nanoseconds Left(std::chrono::nanoseconds limit, std::chrono::nanoseconds now) const {
    return lasts_ ? began_ + limit - now : limit;
  }

 private:
  bool lasts_ = false;
  std::chrono::nanoseconds began_{0};
};

}  // namespace weightwire
