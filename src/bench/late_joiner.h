// A follower that joins a run late: the bytes that it fetches, and those of the cheapest plan, found by trying every
// plan.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "bench/setup.h"

namespace weightwire {

struct LateJoiner {
  std::uint64_t fetched_bytes = 0;   // of parts and anchors' files
  std::uint64_t cheapest_bytes = 0;  // of the cheapest plan
  std::uint64_t requests = 0;
  bool from_anchor = false;
};

struct LateJoiners {
  std::uint64_t versions = 0;
  std::uint64_t model_bytes = 0;
  LateJoiner behind;   // holds version 0
  LateJoiner nothing;  // holds nothing
};

// Makes a run of a small model with anchors and `versions` versions after the first, and measures both followers.
Result<LateJoiners> MeasureLateJoiners(const BenchSetup& setup, std::uint64_t versions);

}  // namespace weightwire
