// A store around another that counts requests, and fails those that a test wants to fail.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "store/store.h"

namespace weightwire::testing {

enum class Request : std::uint8_t { kGet, kRead, kPut, kPutIfAbsent, kStat, kList, kRemove, kNow };

// Requests may be made by several threads, `before` is called by any of them; the rest is for one. The inner store must
// outlive it.
class WatchedStore final : public Store {
 public:
  explicit WatchedStore(Store* inner) : inner_(inner) {}

  [[nodiscard]] std::string Name() const override { return inner_->Name(); }
  Result<WallTime> Now() override {
    WW_RETURN_IF_ERROR(Watch(Request::kNow, ""));
    return inner_->Now();
  }

  [[nodiscard]] int Count() const {
    int all = 0;
    for (const auto& [request, count] : counts_) all += count;
    return all;
  }
  [[nodiscard]] int Count(Request request) const { return counts_.contains(request) ? counts_.at(request) : 0; }
  void Forget() { counts_.clear(); }

  // Asked before every request: an error is returned in its place.
  std::function<Status(Request, std::string_view)> before;

 private:
  Status Watch(Request request, std::string_view key) {
    {
      const std::lock_guard lock(mutex_);
      ++counts_[request];
    }
    return before ? before(request, key) : Ok();
  }

  Result<std::vector<std::uint8_t>> DoGet(std::string_view key, std::uint64_t max_bytes) override {
    WW_RETURN_IF_ERROR(Watch(Request::kGet, key));
    return inner_->Get(key, max_bytes);
  }
  Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) override {
    WW_RETURN_IF_ERROR(Watch(Request::kRead, key));
    return inner_->Read(key, offset, out);
  }
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override {
    WW_RETURN_IF_ERROR(Watch(Request::kPut, key));
    return inner_->Put(key, bytes);
  }
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override {
    WW_RETURN_IF_ERROR(Watch(Request::kPutIfAbsent, key));
    return inner_->PutIfAbsent(key, bytes);
  }
  Result<ObjectInfo> DoStat(std::string_view key) override {
    WW_RETURN_IF_ERROR(Watch(Request::kStat, key));
    return inner_->Stat(key);
  }
  Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view start_after,
                                         std::size_t limit) override {
    WW_RETURN_IF_ERROR(Watch(Request::kList, prefix));
    return inner_->List(prefix, start_after, limit);
  }
  Status DoRemove(std::string_view key) override {
    WW_RETURN_IF_ERROR(Watch(Request::kRemove, key));
    return inner_->Remove(key);
  }

  Store* const inner_;
  std::mutex mutex_;
  std::map<Request, int> counts_;  // guarded by mutex_
};

}  // namespace weightwire::testing
