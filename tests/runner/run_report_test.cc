#include "runner/run_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "support/manual_clock.h"
#include "support/memory_store.h"
#include "support/run_maker.h"

namespace weightwire {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunReportTest : public ::testing::Test {
 protected:
  void Publish(int versions) {
    for (int i = 0; i < versions; ++i) maker_.Publish();
  }
  Lease MakeLease(const std::string& name, std::optional<Version> holds) {
    Lease lease;
    lease.run = maker_.run().id();
    lease.follower = NewId(maker_.random());
    lease.name = name;
    lease.holds = holds;
    lease.seconds = 60;
    return lease;
  }

  ManualClock clock_;
  MemoryStore store_{&clock_};
  RunMaker maker_{store_};
};

TEST_F(RunReportTest, ManyRecordsAreReadByAnyNumberOfThreads) {
  Publish(40);
  std::atomic<int> read{0};
  const auto alone = VersionReader(maker_.run(), 1).Read(3, 39).value();
  const auto together = VersionReader(maker_.run(), 8).Read(3, 39, [&read] { ++read; }).value();
  ASSERT_EQ(alone.size(), 37U);
  ASSERT_EQ(together.size(), 37U);
  EXPECT_EQ(read, 37);
  for (std::size_t i = 0; i < together.size(); ++i) {
    EXPECT_EQ(together[i].version, 3 + i);
    EXPECT_EQ(together[i].digest, alone[i].digest);
    EXPECT_TRUE(together[i].can_check_out);
  }
}

TEST_F(RunReportTest, AMissingRecordIsDamage) {
  Publish(5);
  ASSERT_TRUE(store_.Remove(RecordKey(2)).ok());
  for (const Version first : {0U, 2U, 3U}) {
    const auto infos = VersionReader(maker_.run(), 1).Read(first, 4);
    ASSERT_FALSE(infos.ok());
    EXPECT_EQ(infos.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(infos.error().message(), HasSubstr("record of version 2 is missing"));
  }
}

TEST_F(RunReportTest, NewVersionsComeOneByOne) {
  VersionReader reader(maker_.run(), 1);
  EXPECT_FALSE(reader.ReadNext().value().has_value());
  Publish(1);
  const auto first = reader.ReadNext().value();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->anchor_bytes, maker_.records()[0].record.anchor->bytes);
  EXPECT_EQ(first->delta_bytes, std::nullopt);
  EXPECT_TRUE(first->can_check_out);
  EXPECT_FALSE(reader.ReadNext().value().has_value());
  Publish(1);
  const auto second = reader.ReadNext().value();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->version, 1U);
  EXPECT_EQ(second->anchor_bytes, std::nullopt);
  EXPECT_EQ(second->delta_bytes, maker_.records()[1].record.OwnDeltaBytes());
  EXPECT_TRUE(second->can_check_out);
}

TEST_F(RunReportTest, AVersionAfterOneThatWasRemovedIsRemovedTooUntilARebase) {
  Publish(2);
  ASSERT_TRUE(store_.Remove(AnchorManifestKey(maker_.records()[0].record.anchor->name)).ok());
  VersionReader reader(maker_.run(), 1);
  EXPECT_FALSE(reader.Read(0, 1).value().back().can_check_out);
  maker_.Publish();
  EXPECT_FALSE(reader.ReadNext().value()->can_check_out);
  maker_.Publish(/*rebase=*/true);
  EXPECT_TRUE(reader.ReadNext().value()->can_check_out);
}

TEST_F(RunReportTest, ReadsAsManyVersionsAsAskedFor) {
  EXPECT_THAT(ReadVersions(maker_.run(), std::nullopt, 1).value(), IsEmpty());
  EXPECT_FALSE(ReadNewest(maker_.run()).value().has_value());
  Publish(4);
  EXPECT_EQ(ReadVersions(maker_.run(), std::nullopt, 1).value().size(), 4U);
  EXPECT_EQ(ReadVersions(maker_.run(), 9, 1).value().size(), 4U);
  EXPECT_EQ(ReadVersions(maker_.run(), 2, 1).value().front().version, 2U);
  EXPECT_THAT(ReadVersions(maker_.run(), 0, 1).value(), IsEmpty());
  EXPECT_EQ(ReadNewest(maker_.run()).value()->version, 3U);
}

TEST_F(RunReportTest, FollowersAreSortedByNameAndSayHowFarBehindTheyAre) {
  Publish(4);
  ASSERT_TRUE(maker_.run().PutLease(MakeLease("b", 1)).ok());
  clock_.Advance(seconds(61));
  ASSERT_TRUE(maker_.run().PutLease(MakeLease("a", 3)).ok());
  ASSERT_TRUE(maker_.run().PutLease(MakeLease("c", std::nullopt)).ok());
  const std::string damaged = "damaged";
  ASSERT_TRUE(store_
                  .Put(LeaseKey(NewId(maker_.random())),
                       {reinterpret_cast<const std::uint8_t*>(damaged.data()), damaged.size()})
                  .ok());
  clock_.Advance(seconds(2));
  const Followers followers = ReadFollowers(maker_.run(), 3).value();
  EXPECT_EQ(followers.unreadable_leases, 1U);
  ASSERT_EQ(followers.all.size(), 3U);
  const FollowerInfo& a = followers.all[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.lag_versions, 0U);
  EXPECT_TRUE(a.is_active);
  EXPECT_EQ(a.renewed_time, "1970-01-02T00:01:01.000Z");
  EXPECT_EQ(a.renewed_ago, seconds(2));
  EXPECT_EQ(followers.all[1].lag_versions, 2U);
  EXPECT_FALSE(followers.all[1].is_active);
  EXPECT_EQ(followers.all[2].lag_versions, std::nullopt);
}

}  // namespace
}  // namespace weightwire
