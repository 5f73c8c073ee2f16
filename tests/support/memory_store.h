// A store in the memory of this process, for tests. It is gone with the object.
#pragma once

#include <map>
#include <mutex>

#include "store/store.h"

namespace weightwire {

class MemoryStore final : public Store {
 public:
  // `clock` gives the times of objects; it must outlive the store.
  explicit MemoryStore(const Clock* clock) : clock_(clock) {}

  [[nodiscard]] std::string Name() const override { return "memory"; }
  Result<WallTime> Now() override { return clock_->Wall(); }

 private:
  struct Object {
    std::vector<std::uint8_t> bytes;
    WallTime last_modified;
  };

  Result<std::vector<std::uint8_t>> DoGet(std::string_view key, std::uint64_t max_bytes) override;
  Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) override;
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<ObjectInfo> DoStat(std::string_view key) override;
  Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view start_after,
                                         std::size_t limit) override;
  Status DoRemove(std::string_view key) override;

  const Clock* const clock_;
  std::mutex mutex_;
  std::map<std::string, Object, std::less<>> objects_;  // guarded by mutex_
};

}  // namespace weightwire
