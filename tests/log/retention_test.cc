#include "log/retention.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "log/histories.h"

namespace weightwire {
namespace {

template <typename Thing>
bool IsDeletable(const Thing& thing, const Kept& kept, Version newest, WallTime now, const RetentionPolicy& policy) {
  return kept.deltas_after.has_value() && RuleFor(thing, kept, newest, now, policy) == KeepRule::kNone;
}

using namespace weightwire::testing;
using std::chrono::hours;

const WallTime kNow(hours(100'000));

Id IdOf(std::uint8_t number) {
  Id id;
  id.bytes[0] = number;
  return id;
}

SurveyedAnchor Anchor(Version version, AnchorCondition condition = AnchorCondition::kWhole, std::uint8_t id = 0,
                      hours age = hours(1000)) {
  return {{version, IdOf(id)}, condition, 3, 100, kNow - age};
}

std::set<Version> VersionsOf(const Kept& kept) {
  std::set<Version> versions;
  for (const AnchorName& name : kept.anchors) versions.insert(name.version);
  return versions;
}

std::vector<SurveyedAnchor> Anchors(std::initializer_list<Version> versions) {
  std::vector<SurveyedAnchor> anchors;
  for (const Version version : versions) anchors.push_back(Anchor(version));
  return anchors;
}

RetentionPolicy Keep(std::uint64_t anchors, std::uint64_t versions = 0) {
  RetentionPolicy policy;
  policy.anchors = anchors;
  policy.versions = versions;
  return policy;
}

TEST(Retention, RefusesPoliciesBelowTwoAnchors) {
  EXPECT_TRUE(Succeeds(CheckPolicy(RetentionPolicy())));
  EXPECT_TRUE(Succeeds(CheckPolicy(Keep(2))));
  ExpectError(CheckPolicy(Keep(1)), ErrorCode::kInvalidArgument, "at least 2");
  RetentionPolicy policy;
  policy.minimum_age = std::chrono::seconds(-1);
  ExpectError(CheckPolicy(policy), ErrorCode::kInvalidArgument);
}

TEST(Retention, KeepsTheNewestAnchorsAndTheDeltasAfterThem) {
  const Kept kept = ChooseKept({100, {0}}, Anchors({0, 20, 40, 60, 80}), Keep(3));
  EXPECT_EQ(VersionsOf(kept), (std::set<Version>{40, 60, 80}));
  EXPECT_EQ(kept.deltas_after, 40U);
}

TEST(Retention, KeepsAllAnchorsOfAKeptVersion) {
  std::vector<SurveyedAnchor> anchors = Anchors({0, 20, 40});
  anchors.push_back(Anchor(40, AnchorCondition::kUnexamined, 7));
  const Kept kept = ChooseKept({100, {0}}, anchors, Keep(2));
  EXPECT_EQ(kept.anchors, (std::set<AnchorName>{{20, IdOf(0)}, {40, IdOf(0)}, {40, IdOf(7)}}));
}

TEST(Retention, CountsUsableAnchorsOnly) {
  std::vector<SurveyedAnchor> anchors = Anchors({0, 20, 40});
  anchors.push_back(Anchor(60, AnchorCondition::kBroken));
  anchors.push_back(Anchor(70, AnchorCondition::kConflict));
  anchors.push_back(Anchor(80, AnchorCondition::kIncomplete));
  anchors.push_back(Anchor(101));  // of a rebase to come
  EXPECT_EQ(VersionsOf(ChooseKept({100, {0}}, anchors, Keep(2))), (std::set<Version>{20, 40}));
}

TEST(Retention, KeepsOneOlderAnchorAfterARebase) {
  Kept kept = ChooseKept({90, {80}}, Anchors({0, 20, 40, 80}), Keep(3));
  EXPECT_EQ(VersionsOf(kept), (std::set<Version>{40, 80}));
  EXPECT_EQ(kept.deltas_after, 80U);
  kept = ChooseKept({90, {80}}, Anchors({0, 20, 40, 80, 85}), Keep(3));
  EXPECT_EQ(VersionsOf(kept), (std::set<Version>{80, 85}));
}

TEST(Retention, DeletesNothingIfNoAnchorLeadsToTheNewest) {
  const auto anchors = Anchors({0, 20, 40});
  const Kept kept = ChooseKept({90, {80}}, anchors, Keep(2));
  EXPECT_EQ(kept.deltas_after, std::nullopt);
  for (const SurveyedAnchor& anchor : anchors) EXPECT_FALSE(IsDeletable(anchor, kept, 90, kNow, Keep(2)));
  EXPECT_FALSE(IsDeletable(SurveyedDelta{{1, 2}, 1, 1, kNow - hours(1000)}, kept, 90, kNow, Keep(2)));
}

TEST(Retention, KeepsTheNewestVersionsReachable) {
  Kept kept = ChooseKept({100, {0}}, Anchors({0, 20, 40, 60, 80, 100}), Keep(2, 50));  // 51 to 100
  EXPECT_EQ(VersionsOf(kept), (std::set<Version>{40, 80, 100}));
  EXPECT_EQ(kept.deltas_after, 40U);
  kept = ChooseKept({100, {0}}, Anchors({0, 20, 40, 60, 80, 100}), Keep(2, 41));  // 60 to 100
  EXPECT_EQ(VersionsOf(kept), (std::set<Version>{60, 80, 100}));
  kept = ChooseKept({100, {0}}, Anchors({0, 20, 40, 60, 80, 100}), Keep(2, 1'000'000));
  EXPECT_EQ(VersionsOf(kept), (std::set<Version>{0, 80, 100}));
  EXPECT_EQ(kept.deltas_after, 0U);
}

TEST(Retention, KeepsTheNewestVersionsReachableAcrossRebases) {
  // Rebases at 50 and 70. The oldest wanted version, 45, is reached from 40.
  Kept kept = ChooseKept({100, {70, 50, 0}}, Anchors({0, 20, 40, 50, 60, 70, 80, 100}), Keep(2, 56));
  EXPECT_EQ(VersionsOf(kept), (std::set<Version>{40, 50, 70, 80, 100}));
  EXPECT_EQ(kept.deltas_after, 40U);
  // Its own anchor is gone: from the next one on at least.
  kept = ChooseKept({100, {70, 50, 0}}, Anchors({0, 20, 60, 80, 100}), Keep(2, 51));  // 50 to 100
  EXPECT_EQ(VersionsOf(kept), (std::set<Version>{60, 80, 100}));
}

TEST(Retention, KeepsWhatIsBelowTheMinimumAge) {
  const auto anchors = Anchors({0, 20, 40, 60});
  const Kept kept = ChooseKept({100, {0}}, anchors, Keep(2));
  EXPECT_TRUE(IsDeletable(Anchor(0, AnchorCondition::kWhole, 0, hours(24)), kept, 100, kNow, Keep(2)));
  EXPECT_FALSE(IsDeletable(Anchor(0, AnchorCondition::kWhole, 0, hours(23)), kept, 100, kNow, Keep(2)));
  EXPECT_FALSE(IsDeletable(Anchor(0, AnchorCondition::kWhole, 0, hours(-5)), kept, 100, kNow, Keep(2)));
  EXPECT_TRUE(IsDeletable(SurveyedDelta{{1, 2}, 1, 1, kNow - hours(24)}, kept, 100, kNow, Keep(2)));
  EXPECT_FALSE(IsDeletable(SurveyedDelta{{1, 2}, 1, 1, kNow - hours(23)}, kept, 100, kNow, Keep(2)));
}

TEST(Retention, AnchorsThatAreDeletable) {
  const Kept kept = ChooseKept({100, {0}}, Anchors({0, 20, 40, 60}), Keep(2));
  const auto deletable = [&](Version version, AnchorCondition condition) {
    return IsDeletable(Anchor(version, condition, 9), kept, 100, kNow, Keep(2));
  };
  EXPECT_TRUE(deletable(20, AnchorCondition::kUnexamined));
  EXPECT_TRUE(deletable(100, AnchorCondition::kIncomplete));
  EXPECT_TRUE(deletable(100, AnchorCondition::kConflict));
  EXPECT_TRUE(deletable(39, AnchorCondition::kBroken));
  EXPECT_FALSE(deletable(40, AnchorCondition::kBroken));
  for (const AnchorCondition condition : {AnchorCondition::kIncomplete, AnchorCondition::kUnexamined,
                                          AnchorCondition::kConflict, AnchorCondition::kBroken}) {
    EXPECT_FALSE(deletable(101, condition));  // a rebase may be on its way
  }
  EXPECT_FALSE(IsDeletable(Anchor(40), kept, 100, kNow, Keep(2)));
  EXPECT_FALSE(IsDeletable(Anchor(60), kept, 100, kNow, Keep(2)));
}

TEST(Retention, DeltasThatAreDeletable) {
  const Kept kept = ChooseKept({100, {0}}, Anchors({0, 20, 40, 60}), Keep(2));
  const auto deletable = [&](Version from, Version to) {
    return IsDeletable(SurveyedDelta{{from, to}, 1, 1, kNow - hours(1000)}, kept, 100, kNow, Keep(2));
  };
  EXPECT_TRUE(deletable(0, 1));
  EXPECT_TRUE(deletable(39, 40));
  EXPECT_FALSE(deletable(40, 41));
  EXPECT_FALSE(deletable(99, 100));
  EXPECT_FALSE(deletable(100, 101));
  // Those that skip versions.
  EXPECT_TRUE(deletable(30, 50));
  EXPECT_FALSE(deletable(40, 60));
  EXPECT_FALSE(deletable(30, 101));
}

TEST(Retention, LeaseNeedsItsAnchorAndLaterDeltas) {
  Lease lease;
  const Removal delta = RemovalOf(SurveyedDelta{{5, 6}, 1, 1, kNow});
  const Removal anchor = RemovalOf(Anchor(6));
  EXPECT_EQ(delta.key, DeltaFolder(5, 6));
  EXPECT_EQ(anchor.key, AnchorFolder({6, IdOf(0)}));
  EXPECT_FALSE(NeededBy(lease, delta));
  EXPECT_FALSE(NeededBy(lease, anchor));
  lease.needs_from = 6;
  EXPECT_FALSE(NeededBy(lease, delta));
  lease.needs_from = 5;
  EXPECT_TRUE(NeededBy(lease, delta));
  EXPECT_FALSE(NeededBy(lease, anchor));
  lease.needs_anchor = AnchorName{6, IdOf(0)};
  EXPECT_TRUE(NeededBy(lease, anchor));
  EXPECT_FALSE(NeededBy(lease, RemovalOf(Anchor(6, AnchorCondition::kWhole, 1))));
}

// Whatever there is: what is kept leads to the newest version, twice if it can, and to every version that is wanted.
RC_GTEST_PROP(RetentionProperty, WhatIsKeptReachesTheWantedVersions, (std::uint64_t seed)) {
  SeededRandom random(seed);
  // Version by version: the start of its chain, and its anchors.
  std::vector<Version> chain_of;
  std::vector<SurveyedAnchor> anchors;
  const Version versions = 1 + random.Below(40);
  for (Version version = 0; version < versions; ++version) {
    const bool starts = version == 0 || random.Below(10) == 0;
    chain_of.push_back(starts ? version : chain_of.back());
    for (std::uint8_t id = 0; id < 2; ++id) {
      if (random.Below(4) != 0 && !(starts && id == 0)) continue;
      anchors.push_back(Anchor(version, static_cast<AnchorCondition>(random.Below(5)), id));
      if (starts && id == 0) anchors.back().condition = AnchorCondition::kWhole;
    }
  }
  const Version newest = versions - 1;
  const RetentionPolicy policy = Keep(2 + random.Below(4), random.Below(50));
  SurveyedVersions survey{newest, {chain_of[newest]}};
  while (survey.chains.back() > OldestWanted(newest, policy)) {
    survey.chains.push_back(chain_of[survey.chains.back() - 1]);
  }
  const Kept kept = ChooseKept(survey, anchors, policy);

  std::set<Version> usable;
  std::set<Version> leading;
  for (const SurveyedAnchor& anchor : anchors) {
    const bool fit = anchor.condition == AnchorCondition::kWhole || anchor.condition == AnchorCondition::kUnexamined;
    RC_ASSERT(fit || !kept.anchors.contains(anchor.name));
    if (fit) usable.insert(anchor.name.version);
    if (fit && anchor.name.version >= chain_of[newest]) leading.insert(anchor.name.version);
  }
  const std::set<Version> chosen = VersionsOf(kept);
  RC_ASSERT(chosen.size() >= std::min<std::size_t>(2, usable.size()));
  RC_ASSERT(chosen.contains(*usable.rbegin()));
  RC_ASSERT(std::count_if(chosen.begin(), chosen.end(), [&](Version v) { return v >= chain_of[newest]; }) >=
            static_cast<std::ptrdiff_t>(std::min<std::size_t>(policy.anchors, leading.size())));
  RC_ASSERT(kept.deltas_after.has_value());  // the anchor of the newest version's chain is whole

  // What can be reached with all, and with what is kept.
  const auto reach = [&](const std::set<Version>& from, Version after, Version to) {
    const auto next = from.upper_bound(to);
    return next != from.begin() && *std::prev(next) >= chain_of[to] &&
           (*std::prev(next) >= after || *std::prev(next) == to);
  };
  RC_ASSERT(reach(chosen, *kept.deltas_after, newest));
  if (policy.versions > 0) {
    for (Version version = OldestWanted(newest, policy); version <= newest; ++version) {
      RC_ASSERT(reach(chosen, *kept.deltas_after, version) == reach(usable, 0, version));
    }
  }
}

}  // namespace
}  // namespace weightwire
