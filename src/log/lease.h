// A lease: a follower's word on what it holds and still needs, so that gc leaves it (spec/PROTOCOL.md, "Leases").
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "log/id.h"
#include "log/keys.h"
#include "log/policy.h"

namespace weightwire {

struct Lease {
  Id run;
  Id follower;
  std::string name;                   // for people; no control characters
  std::optional<Version> holds;       // the version it has
  std::optional<Version> needs_from;  // it may still need every delta after this version
  std::optional<AnchorName> needs_anchor;
  std::uint64_t seconds = 0;  // how long it lives without renewal

  bool operator==(const Lease&) const = default;
};

[[nodiscard]] std::string ToJson(const Lease& lease);
Result<Lease> ParseLease(std::string_view json);

// Whether the lease still protects what it names. Both times are by the store's clock. In doubt it is active.
[[nodiscard]] inline bool IsActive(const Lease& lease, WallTime last_modified, WallTime store_now) {
  return store_now - last_modified <= std::chrono::seconds(lease.seconds) + kStoreClockSlack;
}

}  // namespace weightwire
