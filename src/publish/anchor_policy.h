// When an anchor is due by policy.
#pragma once

#include <cstdint>
#include <optional>

#include "log/run.h"

namespace weightwire {

// 0 is never. If neither is 0, whichever comes first.
struct AnchorPolicy {
  std::uint64_t every = 0;    // versions
  std::uint64_t percent = 0;  // of the model's bytes, in deltas
};

// Whether a version needs an anchor, given the newest one before it. `delta_bytes` are those of all deltas up to the
// version, as its record counts them. Right however large the numbers are that the user gave.
[[nodiscard]] bool IsAnchorDue(const AnchorPolicy& policy, const std::optional<KnownAnchor>& last, Version version,
                               std::uint64_t delta_bytes, std::uint64_t model_bytes);

}  // namespace weightwire
