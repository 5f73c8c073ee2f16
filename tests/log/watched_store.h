// A store around another that counts requests, and fails those that a test wants to fail.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "store/wrappers/forwarding_store.h"

namespace weightwire::testing {

// Requests may be made by several threads, `before` is called by any of them; the rest is for one. The inner store must
// outlive it.
class WatchedStore final : public ForwardingStore {
 public:
  explicit WatchedStore(Store* inner) : ForwardingStore(*inner) {}

  [[nodiscard]] int Count() const {
    int all = 0;
    for (const auto& [request, count] : counts_) all += count;
    return all;
  }
  [[nodiscard]] int Count(StoreOperation request) const { return counts_.contains(request) ? counts_.at(request) : 0; }
  void ResetCounts() { counts_.clear(); }

  // Asked before every request: an error is returned in its place.
  std::function<Status(StoreOperation, std::string_view)> before;

 private:
  Status Around(StoreRequest& request, const Send& send) override {
    {
      const std::lock_guard lock(mutex_);
      ++counts_[request.operation];
    }
    if (before) WW_RETURN_IF_ERROR(before(request.operation, request.key));
    return send();
  }
  // An upload becomes a put.
  Result<std::unique_ptr<Upload>> DoStartUpload(std::string_view key, std::uint64_t size_bytes) override {
    return Store::DoStartUpload(key, size_bytes);
  }

  std::mutex mutex_;
  std::map<StoreOperation, int> counts_;  // guarded by mutex_
};

}  // namespace weightwire::testing
