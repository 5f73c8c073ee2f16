// The cheapest plan to fetch a version, by bytes: deltas from the version held, or an anchor and the deltas after it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/result.h"
#include "log/mark.h"
#include "log/record.h"
#include "log/run.h"

namespace weightwire {

// A version that deltas start from: the one held, or an anchor's.
struct DeltaStart {
  Version version = 0;
  std::uint64_t delta_bytes = 0;  // of its record
};

struct FetchPlan {
  std::optional<KnownAnchor> anchor;  // to load first; none: the deltas start at the version held
  Version from = 0;                   // deltas of the versions after this one …
  Version to = 0;                     // … up to this one
  std::uint64_t bytes = 0;            // of all that
};

// What turned out to be missing or damaged, and is not to be tried again.
struct Avoid {
  std::set<AnchorName> anchors;
  std::set<Version> deltas;  // of the version they lead to

  // Whether all deltas after `from` up to `to` may be used.
  [[nodiscard]] bool Allows(Version from, Version to) const {
    const auto first = deltas.upper_bound(from);
    return first == deltas.end() || *first > to;
  }
};

// Chooses among the version held, if any, and the anchors given. nullopt if none of them leads to the target. Pure.
[[nodiscard]] std::optional<FetchPlan> CheapestPlan(const Record& target, const std::optional<DeltaStart>& held,
                                                    std::span<const KnownAnchor> anchors, const Avoid& avoid);

// Finds the cheapest plan in the store. Reads anchors only if the deltas are missing or cost more than the newest
// anchor does. kNotFound if no plan leads to the target.
Result<FetchPlan> PlanFetch(const Run& run, const Record& target, const std::optional<DeltaStart>& held,
                            const Avoid& avoid);

}  // namespace weightwire
