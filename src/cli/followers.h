// The followers of a run, as far as their leases tell.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/json.h"
#include "log/run.h"

namespace weightwire {

struct KnownFollower {
  Lease lease;
  std::chrono::seconds renewed_ago{0};  // by the store's clock
  bool alive = false;
  std::optional<std::uint64_t> behind;  // versions; nothing if it holds none
};

struct Followers {
  std::vector<KnownFollower> all;  // by name
  std::uint64_t damaged = 0;       // leases that cannot be read
};

// `newest`: the newest version, if there is one.
Result<Followers> ReadFollowers(const Run& run, std::optional<Version> newest);

[[nodiscard]] JsonOutput ToJsonOutput(const KnownFollower& follower);
// A line for each, under a head; nothing if there are none.
[[nodiscard]] std::string FollowerTable(const std::vector<KnownFollower>& followers);

}  // namespace weightwire
