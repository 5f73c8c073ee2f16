// A store that lies about leases and marks, so that tests can plant bugs of gc and of followers without touching them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "log/keys.h"
#include "store/wrappers/forwarding_store.h"

namespace weightwire::testing {

enum class Lie : std::uint8_t {
  kNone,
  kNoLeases,      // the list of leases is empty
  kNoMarks,       // the list of gc's marks is empty, and no request is made
  kLeaseWritten,  // a lease is reported as written, and no request is made
};

// `inner` must outlive it.
class LyingStore final : public ForwardingStore {
 public:
  LyingStore(Store& inner, Lie lie) : ForwardingStore(inner), lie_(lie) {}

 private:
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override {
    if (lie_ == Lie::kLeaseWritten && key.starts_with(kLeasesPrefix)) return Ok();
    return ForwardingStore::DoPut(key, bytes);
  }
  Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view start_after,
                                         std::size_t limit) override {
    if (lie_ == Lie::kNoMarks && prefix == kMarksPrefix) return std::vector<ObjectInfo>();
    auto found = ForwardingStore::DoList(prefix, start_after, limit);
    if (lie_ == Lie::kNoLeases && prefix == kLeasesPrefix && found.ok()) found.value().clear();
    return found;
  }

  const Lie lie_;
};

}  // namespace weightwire::testing
