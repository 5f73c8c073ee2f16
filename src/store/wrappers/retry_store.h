// A store that tries again what failed for now.
//
// After a transient error (base/failure_policy.h) it waits and repeats the call, for the last time at the deadline.
// With `across_calls` an outage has one deadline for all calls: the time counts from the first failure after which the
// store has answered nothing.
//
// A write whose answer was lost (kUnknownOutcome) is not repeated blindly:
//   Put, Remove      are repeated: doing them twice is doing them once.
//   PutIfAbsent      compares the object with `bytes` (read_back.h): equal means kCreated, others kExists. If none
//   exists,
//                    tries again, and from then on checks "exists" in the same way, because the lost request may still
//                    arrive. Two writers with equal bytes cannot be told apart.
//   Upload::Finish   looks whether an object of this size is there, which is enough for names that hold a hash.
// Only a write whose outcome is still not known at the end gives kUnknownOutcome.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "base/failure_policy.h"
#include "base/random.h"
#include "store/policy.h"
#include "store/wrappers/forwarding_store.h"

namespace weightwire {

struct RetryPolicy {
  BackoffPolicy backoff{.first = kFirstRetryPause, .last = kLastRetryPause};
  std::chrono::nanoseconds deadline = kRetryDeadline;  // for one call with all its repetitions
  bool across_calls = false;                           // and for all calls in a row that the store does not answer
};

class RetryStore final : public ForwardingStore {
 public:
  // Clock, sleeper and random must outlive the store, which is the only one to use `random`.
  RetryStore(std::unique_ptr<Store> inner, const RetryPolicy& policy, const Clock* clock, Sleeper* sleeper,
             Random* random);

 private:
  class Attempts;

  Status Around(StoreRequest& request, const Send& send) override;
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Status Repeat(const Send& send, bool also_if_lost);
  Status FinishUpload(const StoreRequest& request, const Send& send);
  MonotonicTime NextPause(Backoff& backoff);
  // Notes that the store answered, or that it did not, to an attempt that began at that time.
  void SetAnswered();
  void SetUnanswered(MonotonicTime began);
  // When the outage began that lasts now.
  std::optional<MonotonicTime> OutageBegan();

  const RetryPolicy policy_;
  const Clock* const clock_;
  Sleeper* const sleeper_;
  std::mutex random_mutex_;
  Random* const random_;  // guarded by random_mutex_
  std::mutex outage_mutex_;
  std::optional<MonotonicTime> outage_began_;  // guarded by outage_mutex_
};

}  // namespace weightwire
