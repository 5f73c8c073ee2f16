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
#include "store/store.h"

namespace weightwire {

struct StoreLimits {
  std::uint64_t bytes_per_second = 0;  // 0: no limit
  std::size_t requests_at_once = 0;    // 0: no limit
};

class LimitStore final : public Store {
 public:
  // Clock and sleeper must outlive the store.
  LimitStore(std::unique_ptr<Store> inner, const StoreLimits& limits, const Clock* clock, Sleeper* sleeper);

  [[nodiscard]] std::string Name() const override { return inner_->Name(); }
  Result<WallTime> Now() override;

 private:
  class Turn;
  class LimitUpload;

  Result<std::vector<std::uint8_t>> DoGet(std::string_view key, std::uint64_t max_bytes) override;
  Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) override;
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<ObjectInfo> DoStat(std::string_view key) override;
  Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view start_after,
                                         std::size_t limit) override;
  Status DoRemove(std::string_view key) override;
  Result<std::unique_ptr<Upload>> DoStartUpload(std::string_view key, std::uint64_t size_bytes) override;

  // When the line is free, and from when on it is then taken by `bytes` more.
  std::chrono::nanoseconds Take(std::uint64_t bytes);

  const std::unique_ptr<Store> inner_;
  const StoreLimits limits_;
  const Clock* const clock_;
  Sleeper* const sleeper_;
  std::mutex mutex_;
  std::condition_variable less_;           // a request has ended
  std::size_t requests_ = 0;               // guarded by mutex_
  std::chrono::nanoseconds free_from_{0};  // guarded by mutex_
};

}  // namespace weightwire
