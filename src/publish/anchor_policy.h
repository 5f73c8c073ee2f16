// When an anchor is due by policy, which one that is counted from, and how long none is due after one that was
// abandoned.
//
// Both are counted in versions, not in time: most anchors are abandoned because versions come faster than they upload.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
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

// Finds the newest complete anchor of the chain whose state is its version's; nullopt if there is none.
Result<std::optional<KnownAnchor>> FindNewestAnchor(const Run& run, const Record& newest);

// After n anchors in a row were abandoned, none is started for 8 * 2^n versions (n <= 8).
class AnchorBackoff {
 public:
  [[nodiscard]] bool Allows(Version version) const { return version >= first_allowed_; }
  void Abandoned(Version newest);
  void Completed() { *this = {}; }

 private:
  int in_a_row_ = 0;
  Version first_allowed_ = 0;
};

}  // namespace weightwire
