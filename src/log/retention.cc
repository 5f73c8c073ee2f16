#include "log/retention.h"

#include <fmt/format.h>

#include <algorithm>

namespace weightwire {
namespace {

bool IsUsable(const SurveyedAnchor& anchor, Version newest) {
  const bool fit = anchor.condition == AnchorCondition::kWhole || anchor.condition == AnchorCondition::kUnexamined;
  // One of a version yet to come belongs to a rebase that is being made.
  return fit && anchor.name.version <= newest;
}

// Versions that have a usable anchor.
std::set<Version> UsableVersions(std::span<const SurveyedAnchor> anchors, Version newest) {
  std::set<Version> versions;
  for (const SurveyedAnchor& anchor : anchors) {
    if (IsUsable(anchor, newest)) versions.insert(anchor.name.version);
  }
  return versions;
}

// For every chain that the policy reaches into: the anchor from which its oldest wanted version can be reached, or else
// the first one after it.
std::set<Version> AnchorsForWanted(const SurveyedVersions& versions, const std::set<Version>& usable,
                                   const RetentionPolicy& policy) {
  std::set<Version> needed;
  if (policy.versions == 0) return needed;
  const Version oldest = OldestWanted(versions.newest, policy);
  Version last = versions.newest;  // of the chain
  for (const Version first : versions.chains) {
    const auto after = usable.upper_bound(std::max(first, oldest));
    if (after != usable.begin() && *std::prev(after) >= first) {
      needed.insert(*std::prev(after));
    } else if (after != usable.end() && *after <= last) {
      needed.insert(*after);
    }
    if (first <= oldest) break;
    last = first - 1;
  }
  return needed;
}

}  // namespace

Status CheckPolicy(const RetentionPolicy& policy) {
  if (policy.anchors < kMinKeptAnchors) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("a gc that keeps {} anchors is refused: keep at least {}, since one may turn out damaged",
                             policy.anchors, kMinKeptAnchors));
  }
  if (policy.minimum_age.count() < 0) {
    return Error(ErrorCode::kInvalidArgument, "the minimum age of a gc cannot be negative");
  }
  return Ok();
}

Version OldestWanted(Version newest, const RetentionPolicy& policy) {
  if (policy.versions == 0) return newest;
  return newest - std::min(newest, policy.versions - 1);
}

Kept ChooseKept(const SurveyedVersions& versions, std::span<const SurveyedAnchor> anchors,
                const RetentionPolicy& policy) {
  const std::set<Version> usable = UsableVersions(anchors, versions.newest);
  std::set<Version> keep;
  Kept kept;
  // Those before the newest version's chain lead to it no more; they are a second choice for a run just rebased.
  for (const Version version : std::vector<Version>(usable.rbegin(), usable.rend())) {
    const bool leads = version >= versions.chains.front();
    if (keep.size() >= (leads ? policy.anchors : kMinKeptAnchors)) break;
    keep.insert(version);
    if (leads) kept.deltas_after = version;
  }
  if (kept.deltas_after.has_value()) {
    kept.deltas_for_versions_up_to = *kept.deltas_after;
    for (const Version version : AnchorsForWanted(versions, usable, policy)) {
      if (keep.insert(version).second) kept.anchors_for_versions.insert(version);
      kept.deltas_after = std::min(*kept.deltas_after, version);
    }
  }
  for (const SurveyedAnchor& anchor : anchors) {
    if (IsUsable(anchor, versions.newest) && keep.contains(anchor.name.version)) kept.anchors.insert(anchor.name);
  }
  return kept;
}

bool IsOld(WallTime last_modified, WallTime store_now, const RetentionPolicy& policy) {
  return store_now - last_modified >= policy.minimum_age;
}

KeepRule RuleFor(const SurveyedAnchor& anchor, const Kept& kept, Version newest, WallTime store_now,
                 const RetentionPolicy& policy) {
  const Version version = anchor.name.version;
  if (version > newest) return KeepRule::kUncommitted;
  const bool is_kept = anchor.condition == AnchorCondition::kBroken
                           ? version >= *kept.deltas_after  // perhaps it only could not be read this time
                           : kept.anchors.contains(anchor.name);
  if (is_kept) return kept.anchors_for_versions.contains(version) ? KeepRule::kVersions : KeepRule::kAnchors;
  return IsOld(anchor.youngest, store_now, policy) ? KeepRule::kNone : KeepRule::kMinimumAge;
}

KeepRule RuleFor(const SurveyedDelta& delta, const Kept& kept, Version newest, WallTime store_now,
                 const RetentionPolicy& policy) {
  if (delta.name.to > newest) return KeepRule::kUncommitted;
  // One that skips versions is of use to whoever holds its first.
  if (delta.name.from >= kept.deltas_for_versions_up_to) return KeepRule::kAnchors;
  if (delta.name.from >= *kept.deltas_after) return KeepRule::kVersions;
  return IsOld(delta.youngest, store_now, policy) ? KeepRule::kNone : KeepRule::kMinimumAge;
}

Removal RemovalOf(const SurveyedAnchor& anchor) {
  Removal removal;
  removal.key = AnchorFolder(anchor.name);
  removal.anchor = anchor.name;
  removal.incomplete = anchor.condition == AnchorCondition::kIncomplete;
  removal.objects = anchor.objects;
  removal.bytes = anchor.bytes;
  return removal;
}

Removal RemovalOf(const SurveyedDelta& delta) {
  Removal removal;
  removal.key = DeltaFolder(delta.name.from, delta.name.to);
  removal.delta = delta.name;
  removal.objects = delta.objects;
  removal.bytes = delta.bytes;
  return removal;
}

bool NeededBy(const Lease& lease, const Removal& removal) {
  if (removal.anchor.has_value()) return lease.needs_anchor == removal.anchor;
  return lease.needs_from.has_value() && removal.delta->to > *lease.needs_from;
}

}  // namespace weightwire
