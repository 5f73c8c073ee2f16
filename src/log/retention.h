// Chooses what gc keeps of a run and what it may delete, by a policy (spec/PROTOCOL.md, "Duties of gc", 1).
//
// All functions are pure: what lies in the store is told to them, with the store's times and the store's own "now".
// They know no leases but by NeededBy; the collector (gc.h) asks that twice.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "log/keys.h"
#include "log/lease.h"
#include "log/policy.h"

namespace weightwire {

struct RetentionPolicy {
  std::uint64_t anchors =
      kDefaultKeptAnchors;     // versions that keep their anchors: the newest ones that lead to the newest version
  std::uint64_t versions = 0;  // so many of the newest versions stay reachable
  std::chrono::seconds minimum_age = kGcMinimumAge;  // younger things stay
};

// kInvalidArgument for fewer anchors than kMinKeptAnchors, or a negative age.
Status CheckPolicy(const RetentionPolicy& policy);

enum class AnchorCondition : std::uint8_t {
  kIncomplete,  // it has no anchor.json
  kUnexamined,  // it has one
  kWhole,       // its list can be read, its files are there, and it is of its version's state
  kBroken,      // its list cannot be read, or a file is missing
  kConflict,    // it is of another state than its version, such as the anchor of a rebase that lost a race
};

struct SurveyedAnchor {
  AnchorName name;
  AnchorCondition condition = AnchorCondition::kIncomplete;
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;
  WallTime youngest;  // of its objects
};

// All objects of one folder below deltas/.
struct SurveyedDelta {
  DeltaName name;
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;
  WallTime youngest;
};

// The versions, as far as keeping is concerned.
struct SurveyedVersions {
  Version newest = 0;
  // Where chains of deltas begin: that of the newest version, that of the version before that one, and so on, until one
  // begins at or before OldestWanted.
  std::vector<Version> chains;
};

// The oldest version that the policy wants reachable.
[[nodiscard]] Version OldestWanted(Version newest, const RetentionPolicy& policy);

struct Kept {
  std::set<AnchorName> anchors;
  // Deltas of all versions after this one stay. nullopt if no anchor leads to the newest version; gc must then delete
  // nothing.
  std::optional<Version> deltas_after;
  // Of these, what stays for RetentionPolicy::versions only.
  std::set<Version> anchors_for_versions;
  Version deltas_for_versions_up_to = 0;
};

// Anchors that are kUnexamined are trusted: whoever calls examines those that were chosen and asks again, until all
// that are chosen are kWhole.
[[nodiscard]] Kept ChooseKept(const SurveyedVersions& versions, std::span<const SurveyedAnchor> anchors,
                              const RetentionPolicy& policy);

// Why gc keeps an anchor or a delta, leases apart. The first rule that applies counts.
enum class KeepRule : std::uint8_t {
  kNone,         // it is deletable
  kUncommitted,  // its version is newer than the newest one, so a publisher may be writing it
  kAnchors,      // RetentionPolicy::anchors
  kVersions,     // RetentionPolicy::versions
  kMinimumAge,   // RetentionPolicy::minimum_age
};

[[nodiscard]] bool IsOld(WallTime last_modified, WallTime store_now, const RetentionPolicy& policy);
// REQUIRES: kept.deltas_after.has_value().
[[nodiscard]] KeepRule RuleFor(const SurveyedAnchor& anchor, const Kept& kept, Version newest, WallTime store_now,
                               const RetentionPolicy& policy);
// Of a whole folder. Parts that no record names are the caller's to find, in folders that stay.
[[nodiscard]] KeepRule RuleFor(const SurveyedDelta& delta, const Kept& kept, Version newest, WallTime store_now,
                               const RetentionPolicy& policy);

// One deletable key: the folder of an anchor or of a delta, or a single part.
struct Removal {
  std::string key;  // as a mark names it: a folder with its "/", or one part
  std::optional<AnchorName> anchor;
  std::optional<DeltaName> delta;  // of the folder or part; exactly one of the two is there
  bool incomplete = false;         // an anchor that goes because it has no anchor.json: only as long as it has none
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;
};

[[nodiscard]] Removal RemovalOf(const SurveyedAnchor& anchor);
[[nodiscard]] Removal RemovalOf(const SurveyedDelta& delta);

// Whether a follower with this lease may need it.
[[nodiscard]] bool NeededBy(const Lease& lease, const Removal& removal);

}  // namespace weightwire
