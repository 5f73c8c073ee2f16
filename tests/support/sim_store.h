// A store as one process sees it: a bucket that others see too, over a network that does what a hook says.
//
// The process may die before any request; then every call fails. Nothing depends on anything but the calls and the
// hook. Thread safety: that of the hook.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "store/store.h"

namespace weightwire::testing {

class SimStore final : public Store {
 public:
  // What comes of a request.
  enum class Fate : std::uint8_t {
    kGoOn,
    kDie,          // the process, before it
    kUnavailable,  // nothing happens
    kLostBefore,   // a write does not happen, and its answer is lost; a read is unavailable
    kLostAfter,    // a write happens, and its answer is lost; a read is unavailable
    kRefused,      // by the credentials
  };
  // `request` is one of: get, read, put, put if absent, stat, list, remove.
  using Hook = std::function<Fate(std::string_view request, std::string_view key)>;

  // The bucket must outlive it.
  explicit SimStore(Store& bucket, Hook hook = {}) : bucket_(bucket), hook_(std::move(hook)) {}

  void Kill() { dead_ = true; }
  [[nodiscard]] bool dead() const { return dead_; }
  [[nodiscard]] std::uint64_t requests() const { return requests_; }
  [[nodiscard]] std::uint64_t bytes_written() const { return bytes_written_; }

  [[nodiscard]] std::string Name() const override { return bucket_.Name(); }
  Result<WallTime> Now() override { return bucket_.Now(); }

 private:
  Status Ask(std::string_view request, std::string_view key, bool* lost_after);
  Status Ask(std::string_view request, std::string_view key);

  Result<std::vector<std::uint8_t>> DoGet(std::string_view key, std::uint64_t max_bytes) override;
  Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) override;
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<ObjectInfo> DoStat(std::string_view key) override;
  Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view start_after,
                                         std::size_t limit) override;
  Status DoRemove(std::string_view key) override;

  Store& bucket_;
  Hook hook_;
  std::atomic<bool> dead_ = false;
  std::atomic<std::uint64_t> requests_ = 0;
  std::atomic<std::uint64_t> bytes_written_ = 0;
};

}  // namespace weightwire::testing
