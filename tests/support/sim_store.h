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

#include "store/wrappers/forwarding_store.h"

namespace weightwire::testing {

class SimStore final : public ForwardingStore {
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
  explicit SimStore(Store& bucket, Hook hook = {}) : ForwardingStore(bucket), hook_(std::move(hook)) {}

  void Kill() { dead_ = true; }
  [[nodiscard]] bool dead() const { return dead_; }
  [[nodiscard]] std::uint64_t requests() const { return requests_; }
  [[nodiscard]] std::uint64_t bytes_written() const { return bytes_written_; }

  Result<WallTime> Now() override { return inner().Now(); }

 private:
  Status Around(StoreRequest& request, const Send& send) override;
  // An upload becomes a put.
  Result<std::unique_ptr<Upload>> DoStartUpload(std::string_view key, std::uint64_t size_bytes) override {
    return Store::DoStartUpload(key, size_bytes);
  }

  Hook hook_;
  std::atomic<bool> dead_ = false;
  std::atomic<std::uint64_t> requests_ = 0;
  std::atomic<std::uint64_t> bytes_written_ = 0;
};

}  // namespace weightwire::testing
