#include "sim/lease_check.h"

#include <fmt/format.h>

#include "log/keys.h"

namespace weightwire::sim {

bool IsNeeded(const Lease& lease, std::string_view key) {
  if (const auto delta = DeltaOfKey(key); delta.has_value()) {
    return lease.needs_from.has_value() && delta->from >= *lease.needs_from;
  }
  const auto anchor = AnchorOfKey(key);
  return anchor.has_value() && lease.needs_anchor == anchor;
}

void LeaseCheck::OnFetch(std::string_view key) {
  if (IsAnchorManifestKey(key) || (!DeltaOfKey(key).has_value() && !AnchorOfKey(key).has_value())) return;
  bool has_lease = false;
  WallTime until = step_began_;
  for (auto written = written_.rbegin(); written != written_.rend(); ++written) {
    if (!IsNeeded(written->lease, key) || !IsActive(written->lease, written->at, until)) break;
    if (written->marks_listed) return;
    has_lease = true;
    until = written->at;
  }
  world_.Violation(has_lease ? fmt::format("{} fetches {} before it has listed the marks", follower_, key)
                             : fmt::format("{} fetches {} without a lease that needs it", follower_, key));
}

}  // namespace weightwire::sim
