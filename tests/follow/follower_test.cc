#include "follow/follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "follow/follower_world.h"
#include "follow/rebuild.h"

namespace weightwire {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(FollowerTest, WaitsForTheFirstVersion) {
  Follower follower = MakeFollower();
  Run_(follower);
  EXPECT_FALSE(target_.held().has_value());
  maker_.Publish();
  Run_(follower);
  ExpectHolds(0);
}

TEST_F(FollowerTest, GoesAlongVersionByVersion) {
  maker_.Publish();
  Follower follower = MakeFollower();
  for (Version version = 0; version < 8; ++version) {
    Run_(follower);
    ExpectHolds(version);
    if (version == 4) {
      maker_.PublishUnchanged();
    } else {
      maker_.Publish();
    }
  }
  EXPECT_EQ(follower.status().anchors_loaded, 1u);
}

TEST_F(FollowerTest, AVersionCostsARecordAndAPart) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  maker_.Publish();
  store_.requests.clear();
  Run_(follower);
  ExpectHolds(1);
  // The last two are the questions whether there is yet another.
  EXPECT_EQ(store_.requests,
            (std::vector<std::string>{"get " + RecordKey(1), "get " + RecordKey(2), "read " + PartOf(1),
                                      "get " + RecordKey(2), "get " + RecordKey(2)}));
}

TEST_F(FollowerTest, SeveralVersionsBecomeOneChange) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  for (int i = 0; i < 5; ++i) maker_.Publish();
  const auto steps = Run_(follower);
  ExpectHolds(5);
  EXPECT_EQ(std::count(steps.begin(), steps.end(), FollowerStep::kApply), 1);
  EXPECT_EQ(follower.status().anchors_loaded, 1u);
}

TEST_F(FollowerTest, OrEachIsAppliedOnItsOwn) {
  maker_.Publish();
  Follower follower = MakeFollower({.name = "test", .every_version = true});
  Run_(follower);
  for (int i = 0; i < 5; ++i) maker_.Publish();
  const auto steps = Run_(follower);
  ExpectHolds(5);
  EXPECT_EQ(std::count(steps.begin(), steps.end(), FollowerStep::kApply), 5);
}

TEST_F(FollowerTest, StagesNoMoreThanItMay) {
  maker_.Publish();
  Follower follower = MakeFollower({.name = "test", .apply_at_once = false, .ahead_bytes = 1});
  Run_(follower);
  ASSERT_TRUE(follower.Apply().ok());
  for (int i = 0; i < 5; ++i) maker_.Publish();
  Run_(follower);
  ExpectHolds(0);
  EXPECT_EQ(follower.status().staged, 1u);
  ASSERT_TRUE(follower.Apply().ok());
  ExpectHolds(1);
}

TEST_F(FollowerTest, AppliesOnlyWhenTold) {
  maker_.Publish();
  Follower follower = MakeFollower({.name = "test", .apply_at_once = false});
  Run_(follower);
  ASSERT_TRUE(follower.Apply().ok());
  maker_.Publish();
  maker_.Publish();
  Run_(follower);
  ExpectHolds(0);
  ASSERT_TRUE(follower.HasStaged());
  EXPECT_EQ(follower.Staged()->state_after(), maker_.records()[2].record.state);
  EXPECT_EQ(follower.status().waits_for, "the caller, who applies the update");
  ASSERT_TRUE(follower.Apply().ok());
  ExpectHolds(2);
}

TEST_F(FollowerTest, TheLastChangeCanBeTakenBack) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  maker_.Publish();
  Run_(follower);
  ExpectHolds(1);
  ASSERT_TRUE(follower.Undo().ok());
  ExpectHolds(0);
  Run_(follower);
  ExpectHolds(0);  // it stands still
  EXPECT_FALSE(follower.Undo().ok());
  follower.Unpin();
  Run_(follower);
  ExpectHolds(1);
}

TEST_F(FollowerTest, UndoRenewsTheLeaseBeforeTheDeltaIsFetchedAgain) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  maker_.Publish();
  Run_(follower);
  clock_.Advance(std::chrono::seconds(20));  // so that the lease names version 1
  Run_(follower);
  ASSERT_EQ(maker_.run().ReadLeases(nullptr).value().at(0).lease.needs_from, Version{1});
  ASSERT_TRUE(follower.Undo().ok());
  follower.Unpin();
  const std::vector<FollowerStep> steps = Run_(follower);
  const auto lease = std::find(steps.begin(), steps.end(), FollowerStep::kLease);
  ASSERT_NE(lease, steps.end());
  EXPECT_LT(lease, std::find(steps.begin(), steps.end(), FollowerStep::kFetch));
  EXPECT_EQ(maker_.run().ReadLeases(nullptr).value().at(0).lease.needs_from, Version{0});
}

TEST_F(FollowerTest, APinEndsAnyWayFurther) {
  for (int i = 0; i < 6; ++i) maker_.Publish();
  maker_.AddAnchor(5);
  // Told so after each number of steps: when it wants an anchor, has asked for it, or is loading it.
  for (int steps = 0; steps < 20; ++steps) {
    MemoryTarget target(maker_.kernels(), maker_.pool());
    Follower follower(Run::Open(store_).value(), target, NewId(maker_.random()), {.name = "test"},
                      {&clock_, &maker_.kernels(), &maker_.pool()});
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(follower.Step().ok());
    follower.Pin(2);
    Run_(follower);
    ASSERT_TRUE(target.held().has_value());
    EXPECT_EQ(target.held()->version, 2) << "after " << steps << " steps";
  }
}

TEST_F(FollowerTest, TakesAChangeBackThoughTheStoreIsAway) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  maker_.Publish();
  Run_(follower);
  ExpectHolds(1);
  store_.fail = [](std::string_view, std::string_view) { return Error(ErrorCode::kUnavailable, "away"); };
  ASSERT_TRUE(follower.Undo().ok());
  ExpectHolds(0);
  EXPECT_EQ(follower.status().held, 0u);
  EXPECT_FALSE(follower.Step().ok());
  store_.fail = nullptr;
  Run_(follower);
  ExpectHolds(0);
  EXPECT_EQ(follower.held_record()->record.version, 0u);
  // It goes on from what it holds, not from what it held.
  maker_.Publish();
  follower.Unpin();
  Run_(follower);
  ExpectHolds(2);
}

TEST_F(FollowerTest, APinLeadsForwardAndBackToExactlyThatVersion) {
  for (int i = 0; i < 6; ++i) maker_.Publish();
  Follower follower = MakeFollower();
  for (const Version version : {Version{3}, Version{5}, Version{2}, Version{4}}) {
    follower.Pin(version);
    Run_(follower);
    ExpectHolds(version);
    EXPECT_EQ(follower.status().pinned, version);
    EXPECT_EQ(follower.status().newest, 5U) << "a pinned follower still knows how far behind it is";
    EXPECT_EQ(follower.status().lag, 5 - version);
    EXPECT_EQ(follower.status().waits_for, "");
  }
  EXPECT_EQ(follower.status().anchors_loaded, 2U) << "one of them on the way back, over which deltas were staged";
  follower.Unpin();
  Run_(follower);
  ExpectHolds(5);
}

TEST_F(FollowerTest, APinOnAVersionThatDoesNotExistYetFollowsUpToIt) {
  maker_.Publish();
  Follower follower = MakeFollower();
  follower.Pin(2);
  for (const Version version : {0U, 1U, 2U, 2U, 2U}) {
    Run_(follower);
    ExpectHolds(version);
    maker_.Publish();
  }
}

TEST_F(FollowerTest, ALimitNeverLeadsBack) {
  for (int i = 0; i < 6; ++i) maker_.Publish();
  Follower follower = MakeFollower();
  follower.LimitTo(3);
  Run_(follower);
  ExpectHolds(3);
  follower.LimitTo(1);
  Run_(follower);
  ExpectHolds(3);
  follower.LimitTo(std::nullopt);
  Run_(follower);
  ExpectHolds(5);
}

TEST_F(FollowerTest, AStagedWayBackIsDroppedWhenItIsUnpinned) {
  for (int i = 0; i < 6; ++i) maker_.Publish();
  Follower follower = MakeFollower({.name = "test", .apply_at_once = false});
  Run_(follower);
  ASSERT_TRUE(follower.Apply().ok());
  ExpectHolds(5);
  follower.Pin(2);
  Run_(follower);
  EXPECT_EQ(follower.status().staged, 2U);
  EXPECT_EQ(follower.Staged(), nullptr) << "it includes a load";
  follower.Unpin();
  Run_(follower);
  EXPECT_FALSE(follower.HasStaged());
  ExpectHolds(5);
  follower.Pin(2);
  Run_(follower);
  ASSERT_TRUE(follower.Apply().ok());
  ExpectHolds(2);
}

TEST_F(FollowerTest, AnUpdateByAnAnchorIsStagedAndDeltasOverIt) {
  for (int i = 0; i < 4; ++i) maker_.Publish();
  Follower follower = MakeFollower({.name = "test", .apply_at_once = false});
  Run_(follower);
  EXPECT_FALSE(target_.held().has_value());
  EXPECT_EQ(follower.status().staged, 3U);
  maker_.Publish();
  Run_(follower);
  EXPECT_FALSE(target_.held().has_value());
  EXPECT_EQ(follower.status().staged, 4U);
  ASSERT_TRUE(follower.Apply().ok());
  ExpectHolds(4);
  EXPECT_EQ(follower.status().anchors_loaded, 1U);
  maker_.Publish();
  Run_(follower);
  EXPECT_NE(follower.Staged(), nullptr);
  ExpectHolds(4);
}

// gc would otherwise remove the deltas that are to be staged over it.
TEST_F(FollowerTest, TheLeaseProtectsTheDeltasAfterAStagedAnchor) {
  for (int i = 0; i < 4; ++i) maker_.Publish();
  Follower follower = MakeFollower({.name = "test", .lease_seconds = 600, .apply_at_once = false});
  Run_(follower);
  clock_.Advance(std::chrono::seconds(250));
  Run_(follower);
  const auto leases = maker_.run().ReadLeases(nullptr).value();
  EXPECT_EQ(leases.at(0).lease.needs_anchor, std::nullopt) << "it is loaded";
  EXPECT_EQ(leases.at(0).lease.needs_from, 0U);
  EXPECT_EQ(leases.at(0).lease.holds, std::nullopt);
}

TEST_F(FollowerTest, TheLeaseSaysWhatIsHeldRightAfterTheFirstLoad) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  EXPECT_EQ(maker_.run().ReadLeases(nullptr).value().at(0).lease.holds, 0U);
}

TEST_F(FollowerTest, StaysBehindByTheLagAllowed) {
  maker_.Publish();
  Follower follower = MakeFollower({.name = "test", .max_lag = 2});
  Run_(follower);
  ExpectHolds(0);  // the first load does not wait
  for (const Version held : {0U, 0U, 3U, 3U, 3U, 6U}) {
    maker_.Publish();
    Run_(follower);
    ExpectHolds(held);
  }
  maker_.Publish(/*rebase=*/true);
  Run_(follower);
  ExpectHolds(6);  // nor is an anchor taken earlier
  follower.Pin(7);
  Run_(follower);
  ExpectHolds(7);
}

TEST_F(FollowerTest, EveryVersionIsTakenThoughAnAnchorWouldBeCheaper) {
  maker_.Publish();
  Follower follower = MakeFollower({.name = "test", .apply_at_once = false, .every_version = true});
  Run_(follower);
  ASSERT_TRUE(follower.Apply().ok());
  for (int i = 0; i < 60; ++i) maker_.Publish(false, 400);
  maker_.AddAnchor(60);
  for (Version version = 1; version <= 60; ++version) {
    Run_(follower);
    EXPECT_EQ(follower.status().staged, version);
    EXPECT_EQ(follower.status().newest, 60U);
    ASSERT_TRUE(follower.Apply().ok());
    ExpectHolds(version);
  }
  // A version whose delta gc has removed is skipped.
  for (int i = 0; i < 3; ++i) maker_.Publish();
  maker_.AddAnchor(63);
  ASSERT_TRUE(store_.Remove(PartOf(62)).ok());
  Run_(follower);
  ASSERT_TRUE(follower.Apply().ok());
  ExpectHolds(61);
  Run_(follower);
  ASSERT_TRUE(follower.Apply().ok());
  ExpectHolds(63);
}

TEST_F(FollowerTest, AFailedVerificationLeavesNoVersionHeld) {
  maker_.Publish();
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  ASSERT_TRUE(follower.Verify().ok());
  ASSERT_TRUE(target_.View().ok());
  const auto bytes = target_.bytes(0);
  const_cast<std::uint8_t*>(bytes.data())[0] ^= 1;  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  EXPECT_EQ(follower.Verify().error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(follower.status().held, std::nullopt);
  Run_(follower);
  ExpectHolds(1);
}

TEST_F(FollowerTest, ALateJoinerFetchesNoMoreThanTheCheapestWay) {
  for (int i = 0; i < 40; ++i) maker_.Publish(false, 10);
  const AnchorRef anchor = maker_.AddAnchor(30);
  Follower follower = MakeFollower();
  Run_(follower);
  ExpectHolds(39);
  const std::uint64_t deltas = maker_.records()[39].record.delta_bytes - maker_.records()[30].record.delta_bytes;
  EXPECT_EQ(follower.status().bytes_fetched, anchor.bytes + deltas);
}

TEST_F(FollowerTest, AnAnchorIsTakenWhenItIsCheaperThanTheDeltas) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  for (int i = 0; i < 60; ++i) maker_.Publish(false, 400);
  maker_.AddAnchor(60);
  const std::uint64_t before = follower.status().bytes_fetched;
  Run_(follower);
  ExpectHolds(60);
  EXPECT_EQ(follower.status().anchors_loaded, 2u);
  EXPECT_LT(follower.status().bytes_fetched - before, maker_.records()[60].record.delta_bytes);
}

TEST_F(FollowerTest, ARebaseIsFollowedOverItsAnchor) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  maker_.Publish();
  maker_.Publish(/*rebase=*/true);
  maker_.Publish();
  Run_(follower);
  ExpectHolds(3);
}

TEST_F(FollowerTest, ADamagedPartIsFetchedAgain) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  maker_.Publish();
  store_.damaged_once.insert(PartOf(1));
  Run_(follower);
  ExpectHolds(1);
  EXPECT_EQ(follower.status().objects_fetched_again, 1u);
  EXPECT_EQ(follower.status().detours, 0u);
}

TEST_F(FollowerTest, NoMemoryIsTakenForAPartThatIsNotAsLargeAsItsRecordSays) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  maker_.Publish();
  Record record = maker_.records()[1].record;
  record.delta->front().size_bytes = std::uint64_t{1} << 40;
  record.delta_bytes = std::uint64_t{1} << 40;
  const std::string json = ToJson(record);
  ASSERT_TRUE(inner_.Put(RecordKey(1), {reinterpret_cast<const std::uint8_t*>(json.data()), json.size()}).ok());
  auto step = follower.Step();
  for (int i = 0; i < 100 && step.ok(); ++i) step = follower.Step();
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.error().code(), ErrorCode::kCorrupt) << step.error().message();  // no other way
  ExpectHolds(0);
}

TEST_F(FollowerTest, APartThatStaysDamagedIsGoneAround) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  for (int i = 0; i < 4; ++i) maker_.Publish();
  store_.damaged.insert(PartOf(3));
  maker_.AddAnchor(3);
  Run_(follower);
  ExpectHolds(4);
  EXPECT_EQ(follower.status().detours, 1u);
}

TEST_F(FollowerTest, WithoutADetourItSaysSoGoesAsFarAsItCanAndRecovers) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  for (int i = 0; i < 4; ++i) maker_.Publish();
  store_.damaged.insert(PartOf(3));
  std::optional<Error> error;
  for (int i = 0; i < 100 && !error.has_value(); ++i) {
    const auto step = follower.Step();
    if (!step.ok()) error = step.error();
  }
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error->message(), AllOf(HasSubstr("no way to version 4"), HasSubstr(PartOf(3))));
  EXPECT_EQ(follower.status().newest, 4u);  // so that it is known to be behind
  ExpectHolds(2);
  // A newer version with an anchor helps …
  maker_.Publish();
  maker_.AddAnchor(5);
  Run_(follower);
  ExpectHolds(5);
}

TEST_F(FollowerTest, APrunedPartMeansAnAnchor) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  for (int i = 0; i < 4; ++i) maker_.Publish();
  maker_.AddAnchor(4);
  ASSERT_TRUE(store_.Remove(PartOf(2)).ok());
  Run_(follower);
  ExpectHolds(4);
}

TEST_F(FollowerTest, ADamagedAnchorIsLeftForAnother) {
  for (int i = 0; i < 3; ++i) maker_.Publish();
  const AnchorRef bad = maker_.AddAnchor(2);
  store_.damaged.insert(AnchorFolder(bad.name) + "model-00001-of-00002.safetensors");
  Follower follower = MakeFollower();
  Run_(follower);
  ExpectHolds(2);
  EXPECT_EQ(follower.status().anchors_loaded, 1u);
  EXPECT_EQ(follower.status().detours, 1u);
}

// Whole in itself and of the right state, but with another configuration than the record's writer saw.
TEST_F(FollowerTest, AnAnchorThatIsNotTheOneNamedIsLeftForAnother) {
  for (int i = 0; i < 3; ++i) maker_.Publish();
  const AnchorRef named = maker_.AddAnchor(2);
  maker_.KnowAnchor(named);
  maker_.Publish();
  const std::string key = AnchorManifestKey(named.name);
  auto json = inner_.Get(key, kMaxPutBytes).value();
  json.insert(json.begin() + 1, ' ');
  ASSERT_TRUE(inner_.Put(key, json).ok());
  store_.requests.clear();
  Follower follower = MakeFollower();
  Run_(follower);
  ExpectHolds(3);
  EXPECT_THAT(store_.requests, Not(Contains(HasSubstr("read " + AnchorFolder(named.name)))));
}

// The same where only the record of the anchor's own version names it.
TEST_F(FollowerTest, NorIsOneTakenThatItsOwnRecordDoesNotName) {
  maker_.Publish();
  maker_.Publish(/*rebase=*/true);
  const AnchorName named = maker_.records()[1].record.anchor->name;
  const AnchorRef other = maker_.AddAnchor(1);
  maker_.KnowAnchor(other);  // the next record names this one, which is gone
  maker_.Publish();
  ASSERT_TRUE(inner_.Remove(AnchorManifestKey(other.name)).ok());
  const std::string key = AnchorManifestKey(named);
  const auto good = inner_.Get(key, kMaxPutBytes).value();
  auto json = good;
  json.insert(json.begin() + 1, ' ');
  ASSERT_TRUE(inner_.Put(key, json).ok());
  store_.requests.clear();
  Follower follower = MakeFollower();
  auto step = follower.Step();
  for (int i = 0; i < 100 && step.ok(); ++i) step = follower.Step();
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.error().code(), ErrorCode::kCorrupt);
  EXPECT_FALSE(target_.held().has_value());
  EXPECT_THAT(store_.requests, Not(Contains(HasSubstr("read " + AnchorFolder(named)))));
  ASSERT_TRUE(inner_.Put(key, good).ok());
  Run_(follower);
  ExpectHolds(2);
}

TEST_F(FollowerTest, AnUnreachableStoreChangesNothing) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  for (int i = 0; i < 3; ++i) maker_.Publish();
  // Every request fails once, at every point.
  std::set<std::string> failed;
  store_.fail = [&](std::string_view call, std::string_view key) -> std::optional<Error> {
    if (!failed.insert(std::string(call) + std::string(key)).second) return std::nullopt;
    return Error(ErrorCode::kUnavailable, "not now");
  };
  for (int i = 0; i < 1000; ++i) {
    const auto step = follower.Step();
    if (step.ok() && step.value() == FollowerStep::kUpToDate) break;
    if (step.ok()) continue;
    ASSERT_EQ(step.error().code(), ErrorCode::kUnavailable);
  }
  ExpectHolds(3);
  EXPECT_GT(failed.size(), 5u);
}

TEST_F(FollowerTest, PutsItsLeaseBeforeItReadsMarksAndFetches) {
  maker_.Publish();
  store_.requests.clear();
  Follower follower = MakeFollower();
  Run_(follower);
  const auto at = [&](const std::string& start) {
    const auto found = std::find_if(store_.requests.begin(), store_.requests.end(),
                                    [&](const std::string& request) { return request.starts_with(start); });
    EXPECT_NE(found, store_.requests.end()) << start;
    return found - store_.requests.begin();
  };
  EXPECT_LT(at("put leases/"), at("list gc/"));
  EXPECT_LT(at("list gc/"), at("read anchors/"));
  const auto leases = follower.status();
  EXPECT_TRUE(leases.has_lease);
}

TEST_F(FollowerTest, RenewsItsLeaseInTimeAndSaysWhatItNeeds) {
  maker_.Publish();
  Follower follower = MakeFollower({.name = "test", .lease_seconds = 600});
  Run_(follower);
  maker_.Publish();
  Run_(follower);
  clock_.Advance(std::chrono::seconds(250));
  Run_(follower);
  std::uint64_t damaged = 0;
  const auto leases = maker_.run().ReadLeases(&damaged);
  ASSERT_TRUE(leases.ok());
  ASSERT_EQ(leases.value().size(), 1u);
  EXPECT_EQ(leases.value()[0].lease.holds, 1u);
  EXPECT_EQ(leases.value()[0].lease.needs_from, 1u);
  EXPECT_EQ(leases.value()[0].last_modified, clock_.Wall());
  ASSERT_TRUE(follower.ReleaseLease().ok());
  EXPECT_TRUE(maker_.run().ReadLeases(&damaged).value().empty());
}

TEST_F(FollowerTest, WhatAMarkNamesCountsAsGone) {
  maker_.Publish();
  maker_.Publish();
  const AnchorRef second = maker_.AddAnchor(1);
  const Mark mark{maker_.run().id(), NewId(maker_.random()), {AnchorFolder(second.name)}};
  const std::string text = ToJson(mark);
  ASSERT_TRUE(store_.Put(MarkKey(mark.id), {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}).ok());
  store_.requests.clear();
  Follower follower = MakeFollower();
  Run_(follower);
  ExpectHolds(1);
  EXPECT_THAT(store_.requests, Not(Contains(HasSubstr("read " + AnchorFolder(second.name)))));
}

// It would keep gc from removing anything since that anchor, as long as the follower lives.
TEST_F(FollowerTest, ALeaseDoesNotGoOnNamingAnAnchorThatWasNotTaken) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  for (int i = 0; i < 3; ++i) maker_.Publish();
  const AnchorRef anchor = maker_.AddAnchor(2);
  // The deltas are away, so the anchor is wanted; while the lease for it is put, it is marked, and the deltas are back.
  bool marked = false;
  store_.fail = [&](std::string_view call, std::string_view key) -> std::optional<Error> {
    if (key.starts_with("deltas/") && !marked) return Error(ErrorCode::kNotFound, "away for now");
    if (call == "put" && key.starts_with("leases/") && !marked) {
      marked = true;
      const Mark mark{maker_.run().id(), NewId(maker_.random()), {AnchorFolder(anchor.name)}};
      const std::string text = ToJson(mark);
      EXPECT_TRUE(store_.Put(MarkKey(mark.id), {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}).ok());
    }
    return std::nullopt;
  };
  while (!marked) static_cast<void>(follower.Step());
  store_.fail = nullptr;
  EXPECT_FALSE(follower.Step().ok());  // there is no way, as far as it knows
  Run_(follower);
  ExpectHolds(3);
  clock_.Advance(std::chrono::seconds(400));
  Run_(follower);
  const auto leases = maker_.run().ReadLeases(nullptr).value();
  ASSERT_EQ(leases.size(), 1U);
  EXPECT_EQ(leases[0].lease.needs_anchor, std::nullopt);
  EXPECT_EQ(leases[0].lease.needs_from, Version{3});
}

// People see by leases how far followers are.
TEST_F(FollowerTest, ALeaseSaysSoonWhichVersionIsHeld) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  maker_.Publish();
  const auto holds = [&] {
    Run_(follower);
    return maker_.run().ReadLeases(nullptr).value().at(0).lease.holds;
  };
  EXPECT_NE(holds(), Version{1});
  clock_.Advance(std::chrono::seconds(14));
  EXPECT_NE(holds(), Version{1});
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(holds(), Version{1});
}

TEST_F(FollowerTest, WithoutTheRightToWriteItFollowsWithoutALease) {
  maker_.Publish();
  store_.fail = [](std::string_view call, std::string_view) -> std::optional<Error> {
    if (call == "put" || call == "put-if-absent") return Error(ErrorCode::kRefused, "read only");
    return std::nullopt;
  };
  Follower follower = MakeFollower();
  Run_(follower);
  ExpectHolds(0);
  EXPECT_FALSE(follower.status().has_lease);
  EXPECT_THAT(follower.status().lease_error, HasSubstr("read only"));
  // Asked again now and then, not at every step.
  const auto puts = [&] {
    return std::count_if(store_.requests.begin(), store_.requests.end(),
                         [](const std::string& request) { return request.starts_with("put leases/"); });
  };
  EXPECT_EQ(puts(), 1);
  clock_.Advance(std::chrono::seconds(299));
  Run_(follower);
  EXPECT_EQ(puts(), 1);
  // And once it may, it does.
  store_.fail = nullptr;
  clock_.Advance(std::chrono::seconds(2));
  Run_(follower);
  EXPECT_EQ(puts(), 2);
  EXPECT_TRUE(follower.status().has_lease);
  EXPECT_EQ(follower.status().lease_error, "");
}

// As of a directory that is mounted read-only.
TEST_F(FollowerTest, AnyErrorOfWritingALeaseThatWillNotPassLeavesReadingAlone) {
  maker_.Publish();
  for (const ErrorCode code : {ErrorCode::kIo, ErrorCode::kLimit, ErrorCode::kUnsupported}) {
    store_.fail = [&](std::string_view call, std::string_view key) -> std::optional<Error> {
      if (call == "put" && key.starts_with("leases/")) return Error(code, "a read-only file system");
      return std::nullopt;
    };
    Follower follower = MakeFollower();
    Run_(follower);
    maker_.Publish();
    Run_(follower);
    ExpectHolds(maker_.newest());
  }
}

TEST_F(FollowerTest, NoAnchorIsFetchedBeforeTheLeaseThatNamesItIsWritten) {
  maker_.Publish();
  Follower follower = MakeFollower();
  // The second lease names the anchor.
  int puts = 0;
  store_.fail = [&](std::string_view call, std::string_view) -> std::optional<Error> {
    if (call == "put" && ++puts >= 2 && puts <= 4) return Error(ErrorCode::kUnavailable, "not now");
    return std::nullopt;
  };
  store_.requests.clear();
  int failed = 0;
  for (int i = 0; i < 100; ++i) {
    const auto step = follower.Step();
    if (!step.ok()) ++failed;
    if (step.ok() && step.value() == FollowerStep::kUpToDate) break;
    const bool reads = std::any_of(store_.requests.begin(), store_.requests.end(),
                                   [](const std::string& request) { return request.starts_with("read anchors/"); });
    ASSERT_TRUE(puts >= 5 || !reads) << "without a lease";
  }
  EXPECT_EQ(failed, 3);
  ExpectHolds(0);
}

TEST_F(FollowerTest, ARenewalThatFailsStopsNothingAsLongAsTheLeaseLives) {
  maker_.Publish();
  Follower follower = MakeFollower({.name = "test", .lease_seconds = 600});
  Run_(follower);
  int puts = 0;
  store_.fail = [&](std::string_view call, std::string_view key) -> std::optional<Error> {
    if (call != "put" || !key.starts_with("leases/")) return std::nullopt;
    ++puts;
    return Error(ErrorCode::kUnavailable, "not now");
  };
  clock_.Advance(std::chrono::seconds(300));
  for (int i = 0; i < 3; ++i) {
    maker_.Publish();
    Run_(follower);
    ExpectHolds(maker_.newest());
  }
  EXPECT_EQ(puts, 1);
  EXPECT_TRUE(follower.status().has_lease);
  clock_.Advance(std::chrono::seconds(21));
  Run_(follower);
  EXPECT_EQ(puts, 2);
  // It lives no more: first the lease, then the rest.
  clock_.Advance(std::chrono::seconds(290));
  EXPECT_EQ(follower.Step().error().code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(follower.status().has_lease);
  store_.fail = nullptr;
  Run_(follower);
  EXPECT_TRUE(follower.status().has_lease);
}

TEST_F(FollowerTest, RefusesARunThatIsNotItsOwn) {
  maker_.Publish();
  {
    Follower follower = MakeFollower();
    Run_(follower);
  }
  MemoryStore elsewhere(&clock_);
  RunMaker other(elsewhere, 2);
  other.Publish();
  Follower follower(other.run(), target_, NewId(maker_.random()), {}, {&clock_, &maker_.kernels(), &maker_.pool()});
  const auto step = follower.Step();
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.error().code(), ErrorCode::kMismatch);
  ExpectHolds(0);
}

TEST_F(FollowerTest, ARecordThatDoesNotFollowItsParentIsRefused) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  maker_.Publish();
  Record forged = maker_.records()[1].record;
  forged.parent = Sha256Of(std::string_view("another history"));
  const std::string text = ToJson(forged);
  ASSERT_TRUE(store_.Put(RecordKey(1), {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}).ok());
  std::optional<Error> error;
  for (int i = 0; i < 20 && !error.has_value(); ++i) {
    const auto step = follower.Step();
    if (!step.ok()) error = step.error();
  }
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->message(), HasSubstr("another parent"));
  ExpectHolds(0);
}

TEST_F(FollowerTest, SaysHowFarBehindItIs) {
  maker_.Publish();
  Follower follower = MakeFollower({.name = "test", .apply_at_once = false});
  Run_(follower);
  ASSERT_TRUE(follower.Apply().ok());
  EXPECT_EQ(follower.status().behind.count(), 0);
  maker_.Publish();
  Run_(follower);
  clock_.Advance(std::chrono::seconds(7));
  const FollowerStatus status = follower.status();
  EXPECT_EQ(status.held, 0u);
  EXPECT_EQ(status.newest, 1u);
  EXPECT_EQ(status.behind, std::chrono::seconds(7));
  ASSERT_TRUE(follower.Apply().ok());
  EXPECT_EQ(follower.status().behind.count(), 0);
}

TEST_F(FollowerTest, ATensorThatComesOrGoesIsFollowedAndTakenBack) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  TestState next = maker_.states().back();
  std::vector<TensorSpec> specs = next.layout->tensors();
  specs.erase(specs.begin() + 1);
  next.tensors.erase(next.tensors.begin() + 1);
  specs.push_back({"zz.new", DType::kF16, {10}});
  next.tensors.emplace_back(20, 7);
  next.layout = std::make_shared<const Layout>(Layout::Make(specs, next.layout->aliases()).value());
  ASSERT_TRUE(maker_.run().PutLayout(*next.layout).ok());
  maker_.PublishState(next, false);
  maker_.Publish();
  Run_(follower);
  ExpectHolds(2);
  ASSERT_TRUE(follower.Undo().ok());
  ExpectHolds(0);
}

TEST_F(FollowerTest, ALeaseThatCannotBeGivenBackDoesNotSpoilARebuild) {
  maker_.Publish();
  bool refused = false;
  store_.fail = [&](std::string_view call, std::string_view) -> std::optional<Error> {
    if (call != "remove") return std::nullopt;
    refused = true;
    return Error(ErrorCode::kRefused, "nothing may be removed");
  };
  const Status status = Rebuild(Run::Open(store_).value(), 0, target_, NewId(maker_.random()), {.name = "test"},
                                {&clock_, &maker_.kernels(), &maker_.pool()});
  EXPECT_TRUE(status.ok()) << status.error().message();
  EXPECT_TRUE(refused);
  ExpectHolds(0);
}

TEST_F(FollowerTest, ARebuildIsNotLostToAStoreThatIsAwayForAWhile) {
  maker_.Publish();
  for (int i = 0; i < 5; ++i) maker_.Publish();
  int requests = 0;
  store_.fail = [&](std::string_view, std::string_view) -> std::optional<Error> {
    if (++requests % 30 > 8) return std::nullopt;
    return Error(ErrorCode::kUnavailable, "not now");
  };
  const Status status = Rebuild(maker_.run(), 5, target_, NewId(maker_.random()), {.name = "test", .keep_lease = false},
                                {&clock_, &maker_.kernels(), &maker_.pool()});
  ASSERT_TRUE(status.ok()) << status.error().message();
  store_.fail = nullptr;
  ExpectHolds(5);
  // But not for ever.
  maker_.Publish();
  requests = 0;
  store_.fail = [&](std::string_view, std::string_view) -> std::optional<Error> {
    ++requests;
    return Error(ErrorCode::kUnavailable, "not now");
  };
  const Status gone = Rebuild(maker_.run(), 6, target_, NewId(maker_.random()), {.name = "test", .keep_lease = false},
                              {&clock_, &maker_.kernels(), &maker_.pool()});
  EXPECT_EQ(gone.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(requests, 10);
}

// Callers decide by what a step did: the loop whether to report an update, the command when one began.
TEST_F(FollowerTest, EachStepSaysWhatItDid) {
  using enum FollowerStep;
  maker_.Publish();
  Follower follower = MakeFollower();
  std::vector<FollowerStep> steps = Run_(follower);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  EXPECT_THAT(steps,
              ElementsAre(kStarted, kLease, kRecord, kPlan, kLease, kPlan, kLoad, kApply, kLease, kNothingNewer));
  EXPECT_THAT(Run_(follower), ElementsAre(kNothingNewer));
  maker_.Publish();
  EXPECT_THAT(Run_(follower), ElementsAre(kRecord, kFetch, kStage, kNothingNewer, kApply, kNothingNewer));
  maker_.Publish();
  maker_.AddAnchor(2);
  ASSERT_TRUE(inner_.Remove(PartOf(2)).ok());
  steps = Run_(follower);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  EXPECT_THAT(steps, ElementsAre(kRecord, kDetour, kPlan, kLease, kPlan, kLoad, kApply, kNothingNewer));
}

TEST_F(FollowerTest, WhatIsAppliedBeforeADetourIsReported) {
  maker_.Publish();
  Follower follower = MakeFollower();
  Run_(follower);
  for (int i = 0; i < 4; ++i) maker_.Publish();
  maker_.AddAnchor(4);
  ASSERT_TRUE(inner_.Remove(PartOf(3)).ok());
  std::vector<Version> held;
  for (auto step = follower.Step(); step.value() != FollowerStep::kUpToDate; step = follower.Step()) {
    if (step.value() == FollowerStep::kApply) held.push_back(target_.held()->version);
  }
  EXPECT_THAT(held, ElementsAre(2, 4));
}

TEST_F(FollowerTest, FollowsToOneVersionForwardsOrBack) {
  for (int i = 0; i < 5; ++i) maker_.Publish();
  Follower follower = MakeFollower();
  ASSERT_TRUE(FollowTo(follower, 3).ok());
  ExpectHolds(3);
  ASSERT_TRUE(FollowTo(follower, 1).ok());
  ExpectHolds(1);
  EXPECT_EQ(FollowTo(follower, 9).error().code(), ErrorCode::kNotFound);
}

TEST_F(FollowerTest, FollowsToTheNewestVersionIfThereIsOne) {
  Follower follower = MakeFollower();
  const Status none = FollowTo(follower, std::nullopt);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(none.error().message(), HasSubstr("has no version yet"));
  maker_.Publish();
  maker_.Publish();
  ASSERT_TRUE(FollowTo(follower, std::nullopt).ok());
  ExpectHolds(1);
}

TEST_F(FollowerTest, TheCallerDecidesWhetherAFailedStepIsRepeated) {
  maker_.Publish();
  Follower follower = MakeFollower();
  int failures = 0;
  store_.fail = [&](std::string_view, std::string_view) -> std::optional<Error> {
    if (failures == 3) return std::nullopt;
    return Error(ErrorCode::kUnavailable, "not now");
  };
  EXPECT_EQ(FollowTo(follower, 0).error().code(), ErrorCode::kUnavailable);
  ASSERT_TRUE(FollowTo(follower, 0, [&](const Result<FollowerStep>& step) {
                if (!step.ok()) ++failures;
                return Ok();
              }).ok());
  EXPECT_EQ(failures, 3);
  ExpectHolds(0);
}

TEST_F(FollowerTest, AnyVersionCanBeRebuilt) {
  for (int i = 0; i < 12; ++i) maker_.Publish(i == 5);
  maker_.AddAnchor(8);
  for (const Version version : {Version{11}, Version{3}, Version{5}, Version{9}, Version{0}}) {
    const Status status = Rebuild(maker_.run(), version, target_, NewId(maker_.random()), {.name = "test"},
                                  {&clock_, &maker_.kernels(), &maker_.pool()});
    ASSERT_TRUE(status.ok()) << status.error().message();
    ExpectHolds(version);
  }
  const Status missing = Rebuild(maker_.run(), 12, target_, NewId(maker_.random()), {.name = "test"},
                                 {&clock_, &maker_.kernels(), &maker_.pool()});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  // Each would hold gc back for as long as it lives.
  EXPECT_TRUE(maker_.run().ReadLeases(nullptr).value().empty());
}

}  // namespace
}  // namespace weightwire
