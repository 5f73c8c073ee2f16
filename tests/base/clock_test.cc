#include "base/clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "support/manual_clock.h"

namespace weightwire {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TEST(SystemClock, IsMonotonicAndTellsThisCentury) {
  const SystemClock clock;
  const nanoseconds before = clock.Monotonic();
  EXPECT_GE(clock.Monotonic(), before);
  EXPECT_GT(clock.Wall(), WallTime(std::chrono::sys_days(std::chrono::year(2020) / 1 / 1)));
}

TEST(ManualClock, MovesOnlyWhenMoved) {
  ManualClock clock;
  const WallTime start = clock.Wall();
  EXPECT_EQ(clock.Monotonic(), nanoseconds(0));
  EXPECT_EQ(clock.Wall(), start);
  ManualSleeper sleeper(&clock);
  EXPECT_TRUE(sleeper.SleepFor(milliseconds(1500)));
  EXPECT_EQ(clock.Monotonic(), milliseconds(1500));
  EXPECT_EQ(clock.Wall() - start, milliseconds(1500));
}

TEST(SystemSleeper, AnEndShortensWaitingUntilItIsCleared) {
  SystemSleeper sleeper;
  sleeper.EndBy(std::chrono::steady_clock::now());
  EXPECT_FALSE(sleeper.SleepFor(std::chrono::hours(1)));
  sleeper.EndBy(std::nullopt);
  EXPECT_TRUE(sleeper.SleepFor(std::chrono::nanoseconds(1)));
}

TEST(SystemSleeper, StopEndsWaitingNowAndLater) {
  SystemSleeper sleeper;
  EXPECT_TRUE(sleeper.SleepFor(nanoseconds(1)));
  bool finished = true;
  std::thread waiter([&] { finished = sleeper.SleepFor(hours(1)); });
  sleeper.Stop();
  waiter.join();
  EXPECT_FALSE(finished);
  EXPECT_FALSE(sleeper.SleepFor(hours(1)));
}

}  // namespace
}  // namespace weightwire
