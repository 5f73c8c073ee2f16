// A store that tries again what failed for now.
//
// After kUnavailable it waits and repeats the call, each time about twice as long, by a random part less, so that many
// clients do not come back at the same time. When the next wait would end after the deadline, the last error is given.
//
// A write whose answer was lost (kUnknownOutcome) is not repeated blindly:
//   Put, Remove      are repeated: doing them twice is doing them once.
//   PutIfAbsent      reads back what is there: our bytes mean kCreated, others kExists. If nothing is there it tries
//                    again, and from then on "exists" is checked in the same way, for the lost request may still
//                    arrive. Two writers with equal bytes cannot be told apart.
//   Upload::Finish   looks whether an object of this size is there, which is enough for names that hold a hash.
// Only a write whose outcome is still not known at the end gives kUnknownOutcome.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "base/random.h"
#include "store/wrappers/forwarding_store.h"

namespace weightwire {

struct RetryPolicy {
  std::chrono::milliseconds first_wait{200};
  std::chrono::milliseconds longest_wait{20'000};
  // For one call with all its repetitions.
  std::chrono::milliseconds deadline{300'000};
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
  Status FinishUpload(const StoreRequest& request, const Send& send);

  const RetryPolicy policy_;
  const Clock* const clock_;
  Sleeper* const sleeper_;
  std::mutex random_mutex_;
  Random* const random_;  // guarded by random_mutex_
};

}  // namespace weightwire
