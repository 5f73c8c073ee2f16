// A store that tells the user when the service behind it stops answering, and when it answers again.
//
// It stands inside the store that retries, so it sees every attempt. Thread safety: that of the inner store.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "store/wrappers/forwarding_store.h"

namespace weightwire {

class OutageNoticeStore final : public ForwardingStore {
 public:
  // `clock` must outlive the store. `retry_for` is what the message says: how long the command retries.
  OutageNoticeStore(std::unique_ptr<Store> inner, const Clock* clock, std::chrono::seconds retry_for)
      : ForwardingStore(std::move(inner)), clock_(clock), retry_for_(retry_for) {}

 private:
  Status Around(StoreRequest& request, const Send& send) override;

  const Clock* const clock_;
  const std::chrono::seconds retry_for_;
  std::mutex mutex_;
  std::optional<MonotonicTime> began_;  // of the outage; guarded by mutex_
  bool told_ = false;                   // guarded by mutex_
};

}  // namespace weightwire
