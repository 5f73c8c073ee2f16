#include "follow/version_lag.h"

#include <gtest/gtest.h>

#include "support/manual_clock.h"

namespace weightwire {
namespace {

using std::chrono::seconds;

class VersionLagTest : public ::testing::Test {
 protected:
  ManualClock clock_;
  VersionLag lag_{clock_};
};

TEST_F(VersionLagTest, NothingIsBehindBeforeAVersionWasSeen) {
  EXPECT_EQ(lag_.newest(), std::nullopt);
  EXPECT_EQ(lag_.versions(), 0U);
  EXPECT_EQ(lag_.behind(), seconds(0));
}

TEST_F(VersionLagTest, CountsFromWhenTheOldestNewerVersionWasSeen) {
  lag_.SetHeld(3);
  lag_.AddSeen(4);
  clock_.Advance(seconds(5));
  lag_.AddSeen(4);
  lag_.AddSeen(6);
  clock_.Advance(seconds(2));
  EXPECT_EQ(lag_.newest(), Version{6});
  EXPECT_EQ(lag_.versions(), 3U);
  EXPECT_EQ(lag_.behind(), seconds(7));
  lag_.SetHeld(4);
  EXPECT_EQ(lag_.versions(), 2U);
  EXPECT_EQ(lag_.behind(), seconds(2));
  lag_.SetHeld(6);
  EXPECT_EQ(lag_.versions(), 0U);
  EXPECT_EQ(lag_.behind(), seconds(0));
}

TEST_F(VersionLagTest, AnOlderVersionThanTheOneHeldIsNotBehind) {
  lag_.SetHeld(3);
  lag_.AddSeen(2);
  clock_.Advance(seconds(1));
  EXPECT_EQ(lag_.versions(), 0U);
  EXPECT_EQ(lag_.behind(), seconds(0));
}

TEST_F(VersionLagTest, AfterGoingBackTheNewerVersionsCountFromThen) {
  lag_.AddSeen(5);
  lag_.SetHeld(5);
  clock_.Advance(seconds(9));
  lag_.SetHeld(2);
  clock_.Advance(seconds(1));
  EXPECT_EQ(lag_.versions(), 3U);
  EXPECT_EQ(lag_.behind(), seconds(1));
}

}  // namespace
}  // namespace weightwire
