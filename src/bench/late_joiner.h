// Somebody who comes late to a run: what is fetched, against the cheapest way there is, found by trying all.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "bench/setup.h"

namespace weightwire {

struct LateJoiner {
  std::uint64_t fetched_bytes = 0;   // of parts and anchors' files
  std::uint64_t cheapest_bytes = 0;  // of the cheapest way
  std::uint64_t requests = 0;
  bool from_anchor = false;
};

struct LateJoiners {
  std::uint64_t versions = 0;
  std::uint64_t model_bytes = 0;
  LateJoiner behind;   // holds version 0
  LateJoiner nothing;  // holds nothing
};

// A run of so many versions after the first of a small model, with anchors on the way.
Result<LateJoiners> MeasureLateJoiners(const BenchSetup& setup, std::uint64_t versions);

}  // namespace weightwire
