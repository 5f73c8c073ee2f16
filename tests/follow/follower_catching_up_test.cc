// A follower that is many versions behind: what is staged stays small, requests are made several at a time, and what
// goes wrong on the way is found where it belongs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "follow/follower_world.h"

namespace weightwire {
namespace {

using ::testing::HasSubstr;

class CatchingUpTest : public FollowerTest {
 protected:
  // Holds version 0, and there are `count` newer ones.
  Follower FallBehind(Version count, FollowerOptions options) {
    maker_.Publish();
    options.keep_lease = false;
    Follower follower = MakeFollower(options);
    Run_(follower);
    if (follower.HasStaged()) {
      EXPECT_TRUE(follower.Apply().ok());
    }
    for (Version i = 0; i < count; ++i) maker_.Publish();
    store_.requests.clear();
    return follower;
  }
};

TEST_F(CatchingUpTest, HundredsOfVersionsAreStagedAndAppliedAsOneChange) {
  Follower follower = FallBehind(300, {.apply_at_once = false});
  const std::vector<FollowerStep> steps = Run_(follower);
  ASSERT_EQ(std::ranges::count(steps, FollowerStep::kStage), 300);
  EXPECT_EQ(follower.status().staged, 300u);
  ASSERT_TRUE(follower.Apply().ok());
  ExpectHolds(300);
  EXPECT_EQ(follower.status().versions_applied, 300u);
  EXPECT_EQ(follower.status().anchors_loaded, 1u);
}

TEST_F(CatchingUpTest, StandsStillAlsoInTheMiddleOfWhatWasStaged) {
  for (const Version at : {1u, 16u, 17u, 30u, 39u}) {
    SCOPED_TRACE(at);
    Follower follower = FallBehind(40, {.apply_at_once = false});
    const Version held = target_.held()->version;
    Run_(follower);
    follower.Pin(held + at);
    Run_(follower);
    ASSERT_TRUE(follower.HasStaged());
    ASSERT_TRUE(follower.Apply().ok());
    ExpectHolds(held + at);
    follower.Unpin();
    Run_(follower);
    if (follower.HasStaged()) {
      ASSERT_TRUE(follower.Apply().ok());
    }
    ExpectHolds(maker_.states().size() - 1);
  }
}

TEST_F(CatchingUpTest, SeveralRecordsAndPartsAreFetchedByOneStep) {
  Follower follower = FallBehind(100, {.fetch_threads = 4});
  const std::vector<FollowerStep> steps = Run_(follower);
  ExpectHolds(100);
  // Sixteen to a step.
  EXPECT_LE(std::ranges::count(steps, FollowerStep::kFetch), 100 / 16 + 2);
  EXPECT_LE(std::ranges::count(steps, FollowerStep::kRecord), 100 / 16 + 2);
  const auto is_part = [](const std::string& request) { return request.starts_with("read deltas/"); };
  EXPECT_EQ(std::ranges::count_if(store_.requests, is_part), 100) << "none twice";
}

TEST_F(CatchingUpTest, GoesNoFurtherThanItIsToldWhenItReadsAhead) {
  Follower follower = FallBehind(50, {.fetch_threads = 4});
  follower.Pin(21);
  Run_(follower);
  ExpectHolds(21);
  const auto is_later = [&](const std::string& request) { return request.ends_with(PartOf(22)); };
  EXPECT_EQ(std::ranges::count_if(store_.requests, is_later), 0);
}

TEST_F(CatchingUpTest, APartThatIsDamagedOnceAmongManyIsFetchedAgain) {
  Follower follower = FallBehind(40, {.fetch_threads = 4});
  for (const Version version : {1u, 7u, 8u, 31u}) store_.damaged_once.insert(PartOf(version));
  Run_(follower);
  ExpectHolds(40);
  EXPECT_EQ(follower.status().detours, 0u);
}

TEST_F(CatchingUpTest, APartThatStaysDamagedAmongManyEndsTheWayThere) {
  Follower follower = FallBehind(40, {.fetch_threads = 4});
  store_.damaged.insert(PartOf(23));
  // There is no anchor to go around it.
  Result<FollowerStep> step = FollowerStep::kRecord;
  while (step.ok() && step.value() != FollowerStep::kUpToDate) step = follower.Step();
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(step.error().message(), HasSubstr(PartOf(23)));
  ExpectHolds(22);
}

TEST_F(CatchingUpTest, ARecordThatCannotBeReadAheadIsToldWhenItIsItsTurn) {
  Follower follower = FallBehind(40, {.fetch_threads = 4});
  store_.fail = [](std::string_view call, std::string_view key) -> std::optional<Error> {
    if (call != "get" || key != RecordKey(12)) return std::nullopt;
    return Error(ErrorCode::kUnavailable, "not now");
  };
  Result<FollowerStep> step = FollowerStep::kRecord;
  while (step.ok() && step.value() != FollowerStep::kUpToDate) step = follower.Step();
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(follower.status().staged, 11u);
  store_.fail = nullptr;
  Run_(follower);
  ExpectHolds(40);
}

}  // namespace
}  // namespace weightwire
