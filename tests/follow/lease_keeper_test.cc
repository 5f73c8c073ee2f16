#include "follow/lease_keeper.h"

#include <gtest/gtest.h>

#include "follow/follower_world.h"
#include "support/manual_clock.h"

namespace weightwire {
namespace {

using std::chrono::seconds;

class LeaseKeeperTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSeconds = 600;

  LeaseKeeper MakeKeeper(bool keep = true) {
    return {Run::Open(store_).value(), id_, {keep, "test", kSeconds}, clock_};
  }
  void FailPuts(ErrorCode code) {
    store_.fail = [code](std::string_view call, std::string_view) -> std::optional<Error> {
      if (call == "put") return Error(code, "refused by the test");
      return std::nullopt;
    };
  }
  std::vector<KnownLease> Leases() { return maker_.run().ReadLeases(nullptr).value(); }
  void PutMark(std::vector<std::string> keys) {
    const Mark mark{maker_.run().id(), NewId(maker_.random()), std::move(keys)};
    const std::string text = ToJson(mark);
    ASSERT_TRUE(inner_.Put(MarkKey(mark.id), {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}).ok());
  }

  ManualClock clock_;
  MemoryStore inner_{&clock_};
  SpoiledStore store_{inner_};
  RunMaker maker_{store_};
  const Id id_ = NewId(maker_.random());
  const AnchorName anchor_{3, NewId(maker_.random())};
};

TEST_F(LeaseKeeperTest, IsDueAtFirstAndAfterAThirdOfItsLifetime) {
  LeaseKeeper keeper = MakeKeeper();
  EXPECT_TRUE(keeper.IsDue(std::nullopt));
  EXPECT_FALSE(keeper.IsAlive());
  ASSERT_TRUE(keeper.Renew({.holds = 5}).ok());
  EXPECT_FALSE(keeper.IsDue(5));
  EXPECT_TRUE(keeper.IsAlive());
  clock_.Advance(seconds(kSeconds / kRenewalsPerLease) - seconds(1));
  EXPECT_FALSE(keeper.IsDue(5));
  clock_.Advance(seconds(1));
  EXPECT_TRUE(keeper.IsDue(5));
}

TEST_F(LeaseKeeperTest, IsDueSoonerWhenTheTargetHoldsANewerVersion) {
  LeaseKeeper keeper = MakeKeeper();
  ASSERT_TRUE(keeper.Renew({.holds = 5}).ok());
  clock_.Advance(kLeaseNewsAfter - seconds(1));
  EXPECT_FALSE(keeper.IsDue(6));
  clock_.Advance(seconds(1));
  EXPECT_TRUE(keeper.IsDue(6));
  EXPECT_FALSE(keeper.IsDue(5));
}

TEST_F(LeaseKeeperTest, IsAliveForItsLifetimeOfTheFollowersClock) {
  LeaseKeeper keeper = MakeKeeper();
  ASSERT_TRUE(keeper.Renew({}).ok());
  clock_.Advance(seconds(kSeconds) - seconds(1));
  EXPECT_TRUE(keeper.IsAlive());
  clock_.Advance(seconds(1));
  EXPECT_FALSE(keeper.IsAlive());
  ASSERT_TRUE(keeper.Renew({}).ok());
  EXPECT_TRUE(keeper.IsAlive());
}

// The write may take long; gc counts from when it arrived, which is later.
TEST_F(LeaseKeeperTest, ItsLifetimeIsCountedFromBeforeTheWriteWasSent) {
  LeaseKeeper keeper = MakeKeeper();
  store_.fail = [&](std::string_view call, std::string_view) -> std::optional<Error> {
    if (call == "put") clock_.Advance(seconds(100));
    return std::nullopt;
  };
  ASSERT_TRUE(keeper.Renew({}).ok());
  clock_.Advance(seconds(kSeconds) - seconds(100));
  EXPECT_FALSE(keeper.IsAlive());
}

TEST_F(LeaseKeeperTest, SaysWhatTheFollowerNeeds) {
  LeaseKeeper keeper = MakeKeeper();
  ASSERT_TRUE(keeper.Renew({.holds = 5, .anchor = anchor_}).ok());
  ASSERT_EQ(Leases().size(), 1U);
  const Lease lease = Leases()[0].lease;
  EXPECT_EQ(lease.follower, id_);
  EXPECT_EQ(lease.name, "test");
  EXPECT_EQ(lease.seconds, kSeconds);
  EXPECT_EQ(lease.holds, Version{5});
  EXPECT_EQ(lease.needs_from, Version{3});
  EXPECT_EQ(lease.needs_anchor, anchor_);
}

TEST_F(LeaseKeeperTest, ProtectsOnlyTheAnchorThatTheWrittenLeaseNames) {
  LeaseKeeper keeper = MakeKeeper();
  ASSERT_TRUE(keeper.Renew({.holds = 5}).ok());
  EXPECT_FALSE(keeper.Protects(anchor_));
  ASSERT_TRUE(keeper.Renew({.holds = 5, .anchor = anchor_}).ok());
  EXPECT_TRUE(keeper.Protects(anchor_));
  EXPECT_FALSE(keeper.Protects({4, anchor_.id}));
  // A write whose result is unknown may have replaced it.
  FailPuts(ErrorCode::kUnknownOutcome);
  ASSERT_TRUE(keeper.Renew({.holds = 5}).ok());
  EXPECT_FALSE(keeper.Protects(anchor_));
}

TEST_F(LeaseKeeperTest, ReadsTheMarksAfterEachWrite) {
  PutMark({AnchorFolder(anchor_), DeltaFolder(6, 7)});
  LeaseKeeper keeper = MakeKeeper();
  store_.requests.clear();
  ASSERT_TRUE(keeper.Renew({}).ok());
  ASSERT_GE(store_.requests.size(), 2U);
  EXPECT_TRUE(store_.requests[0].starts_with("put leases/"));
  EXPECT_TRUE(store_.requests[1].starts_with("list gc/"));
  EXPECT_TRUE(keeper.marked().anchors.contains(anchor_));
  EXPECT_TRUE(keeper.marked().deltas.contains(7));
  EXPECT_TRUE(keeper.IsMarked(DeltaFolder(6, 7) + "part.safetensors"));
  EXPECT_FALSE(keeper.IsMarked(DeltaFolder(7, 8) + "part.safetensors"));
}

TEST_F(LeaseKeeperTest, ALeaseWithoutKnownMarksDoesNotCountAsWritten) {
  LeaseKeeper keeper = MakeKeeper();
  store_.fail = [](std::string_view call, std::string_view) -> std::optional<Error> {
    if (call == "list") return Error(ErrorCode::kUnavailable, "not now");
    return std::nullopt;
  };
  EXPECT_FALSE(keeper.Renew({}).ok());
  EXPECT_FALSE(keeper.IsAlive());
  EXPECT_TRUE(keeper.IsDue(std::nullopt));
}

TEST_F(LeaseKeeperTest, ATransientErrorMattersOnlyForWhatIsNotProtectedYet) {
  LeaseKeeper keeper = MakeKeeper();
  FailPuts(ErrorCode::kUnavailable);
  EXPECT_EQ(keeper.Renew({.holds = 5}).error().code(), ErrorCode::kUnavailable);
  store_.fail = nullptr;
  ASSERT_TRUE(keeper.Renew({.holds = 5}).ok());
  FailPuts(ErrorCode::kUnavailable);
  EXPECT_TRUE(keeper.Renew({.holds = 6}).ok());
  EXPECT_EQ(keeper.Renew({.holds = 6, .anchor = anchor_}).error().code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(keeper.error().has_value());
  clock_.Advance(seconds(kSeconds));
  EXPECT_EQ(keeper.Renew({.holds = 6}).error().code(), ErrorCode::kUnavailable);
}

TEST_F(LeaseKeeperTest, AfterATransientErrorItIsDueAgainSoon) {
  LeaseKeeper keeper = MakeKeeper();
  ASSERT_TRUE(keeper.Renew({}).ok());
  FailPuts(ErrorCode::kUnavailable);
  clock_.Advance(seconds(kSeconds / kRenewalsPerLease));
  ASSERT_TRUE(keeper.Renew({}).ok());
  EXPECT_FALSE(keeper.IsDue(std::nullopt));
  clock_.Advance(seconds(kSeconds / kLeaseTriesPerLifetime) - seconds(1));
  EXPECT_FALSE(keeper.IsDue(std::nullopt));
  clock_.Advance(seconds(1));
  EXPECT_TRUE(keeper.IsDue(std::nullopt));
}

TEST_F(LeaseKeeperTest, WithoutThePermissionToWriteItReportsThatAndTriesAgainSeldom) {
  LeaseKeeper keeper = MakeKeeper();
  FailPuts(ErrorCode::kRefused);
  ASSERT_TRUE(keeper.Renew({}).ok());
  ASSERT_TRUE(keeper.error().has_value());
  EXPECT_FALSE(keeper.IsAlive());
  EXPECT_TRUE(keeper.Protects(anchor_));  // nothing better will come
  clock_.Advance(seconds(kSeconds / kRenewalsPerLease) - seconds(1));
  EXPECT_FALSE(keeper.IsDue(std::nullopt));
  clock_.Advance(seconds(1));
  EXPECT_TRUE(keeper.IsDue(std::nullopt));
  store_.fail = nullptr;
  ASSERT_TRUE(keeper.Renew({}).ok());
  EXPECT_FALSE(keeper.error().has_value());
  EXPECT_TRUE(keeper.IsAlive());
}

TEST_F(LeaseKeeperTest, ReleasesWhatItHasWritten) {
  LeaseKeeper keeper = MakeKeeper();
  ASSERT_TRUE(keeper.Release().ok());
  ASSERT_TRUE(keeper.Renew({}).ok());
  ASSERT_TRUE(keeper.Release().ok());
  EXPECT_TRUE(Leases().empty());
  EXPECT_FALSE(keeper.IsAlive());
}

TEST_F(LeaseKeeperTest, WritesNothingIfNoLeaseIsToBeKept) {
  LeaseKeeper keeper = MakeKeeper(/*keep=*/false);
  store_.requests.clear();
  EXPECT_FALSE(keeper.IsDue(std::nullopt));
  EXPECT_TRUE(keeper.Protects(anchor_));
  ASSERT_TRUE(keeper.Release().ok());
  EXPECT_TRUE(store_.requests.empty());
}

}  // namespace
}  // namespace weightwire
