// A store that is not used faster than allowed: bytes a second, both ways together, and requests at a time.
//
// Bytes are counted when a call begins, where its size is known, and else when it ends; the calls after it wait for
// them. A whole object moves at the line's speed, so the rate holds over several calls, not within one.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "store/wrappers/forwarding_store.h"

namespace weightwire {

struct StoreLimits {
  std::uint64_t bytes_per_second = 0;  // 0: no limit
  std::size_t requests_at_once = 0;    // 0: no limit
};

class LimitStore final : public ForwardingStore {
 public:
  // Clock and sleeper must outlive the store.
  LimitStore(std::unique_ptr<Store> inner, const StoreLimits& limits, const Clock* clock, Sleeper* sleeper);

 private:
  class Turn;

  Status Around(StoreRequest& request, const Send& send) override;

  // When the line is free, and from when on it is then taken by `bytes` more.
  std::chrono::nanoseconds Take(std::uint64_t bytes);

  const StoreLimits limits_;
  const Clock* const clock_;
  Sleeper* const sleeper_;
  std::mutex mutex_;
  std::condition_variable less_;           // a request has ended
  std::size_t requests_ = 0;               // guarded by mutex_
  std::chrono::nanoseconds free_from_{0};  // guarded by mutex_
};

}  // namespace weightwire
