#include "log/fetch_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace weightwire {
namespace {

// Anchors that are weighed, newest first. All of a run have about the same size, and an older one needs more deltas.
constexpr std::size_t kAnchorsLookedAt = 8;

std::optional<FetchPlan> ByDeltas(const Record& target, const DeltaStart& held, const Avoid& avoid) {
  if (held.version > target.version || held.version < target.chain) return std::nullopt;
  if (held.delta_bytes > target.delta_bytes || !avoid.Allows(held.version, target.version)) return std::nullopt;
  return FetchPlan{std::nullopt, held.version, target.version, target.delta_bytes - held.delta_bytes};
}

}  // namespace

std::optional<FetchPlan> CheapestPlan(const Record& target, const std::optional<DeltaStart>& held,
                                      std::span<const KnownAnchor> anchors, const Avoid& avoid) {
  std::optional<FetchPlan> best;
  if (held.has_value()) best = ByDeltas(target, *held, avoid);
  for (const KnownAnchor& anchor : anchors) {
    if (avoid.anchors.contains(anchor.manifest.name)) continue;
    std::optional<FetchPlan> plan =
        ByDeltas(target, {anchor.manifest.name.version, anchor.manifest.delta_bytes}, avoid);
    if (!plan.has_value()) continue;
    const auto bytes = CheckedAdd(plan->bytes, anchor.manifest.TotalBytes());
    if (!bytes.has_value()) continue;
    plan->anchor = anchor;
    plan->bytes = *bytes;
    if (!best.has_value() || plan->bytes < best->bytes) best = std::move(plan);
  }
  return best;
}

Result<FetchPlan> PlanFetch(const Run& run, const Record& target, const std::optional<DeltaStart>& held,
                            const Avoid& avoid) {
  std::optional<FetchPlan> plan = CheapestPlan(target, held, {}, avoid);
  // A plan by deltas that costs less than any anchor alone needs no request.
  if (plan.has_value() && (!target.anchor.has_value() || plan->bytes <= target.anchor->bytes)) return *std::move(plan);
  WW_TRY(std::vector<AnchorName> names, run.ListAnchors(target.chain));
  std::erase_if(names, [&](const AnchorName& name) {
    return name.version > target.version || avoid.anchors.contains(name) || !avoid.Allows(name.version, target.version);
  });
  std::reverse(names.begin(), names.end());
  std::vector<KnownAnchor> anchors;
  std::optional<Error> damaged;
  for (const AnchorName& name : names) {
    if (anchors.size() == kAnchorsLookedAt) break;
    auto anchor = run.ReadAnchor(name);
    if (anchor.ok()) {
      if (!Contradicts(target, anchor.value())) anchors.push_back(std::move(anchor).value());
      continue;
    }
    // Gone or damaged: another will do.
    const ErrorCode code = anchor.error().code();
    if (code != ErrorCode::kNotFound && code != ErrorCode::kCorrupt && code != ErrorCode::kLimit) {
      return anchor.error();
    }
    if (code != ErrorCode::kNotFound && !damaged.has_value()) damaged = anchor.error();
  }
  plan = CheapestPlan(target, held, anchors, avoid);
  if (plan.has_value()) return *std::move(plan);
  return Error(damaged.has_value() ? ErrorCode::kCorrupt : ErrorCode::kNotFound,
               fmt::format("there is no way to version {} of {}: no deltas and no anchor lead to it; whoever holds the "
                           "version can write one with `weightwire anchor`{}",
                           target.version, run.store().Name(),
                           damaged.has_value() ? fmt::format(" ({})", damaged->message()) : ""));
}

}  // namespace weightwire
