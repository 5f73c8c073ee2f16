#include "base/durations.h"

#include <gtest/gtest.h>

namespace weightwire {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

TEST(Durations, AreReadWithTheirUnit) {
  EXPECT_EQ(ParseDuration("0").value(), seconds(0));
  EXPECT_EQ(ParseDuration("200ms").value(), std::chrono::milliseconds(200));
  EXPECT_EQ(ParseDuration("30s").value(), seconds(30));
  EXPECT_EQ(ParseDuration("15m").value(), minutes(15));
  EXPECT_EQ(ParseDuration("24h").value(), hours(24));
  EXPECT_EQ(ParseDuration("7d").value(), hours(7 * 24));
}

TEST(Durations, MayHaveAFraction) {
  EXPECT_EQ(ParseDuration("0.5s").value(), std::chrono::milliseconds(500));
  EXPECT_EQ(ParseDuration("1.5h").value(), minutes(90));
  EXPECT_EQ(ParseDuration("0.001s").value(), std::chrono::milliseconds(1));
  EXPECT_EQ(ParseDuration("2.50m").value(), seconds(150));
  EXPECT_EQ(ParseDuration("0.25d").value(), hours(6));
  EXPECT_EQ(ParseDuration("0.0s").value(), seconds(0));
}

TEST(Durations, FinerThanAMillisecondAreRefusedInsteadOfRounded) {
  EXPECT_EQ(ParseDuration("0.0001s").error().message(),
            "'0.0001s' is no duration of whole milliseconds; write for example 500ms, 0.5s, 15m, 24h or 7d");
  EXPECT_FALSE(ParseDuration("0.5ms").ok());
}

TEST(Durations, OthersAreRefused) {
  for (const char* wrong : {"",
                            "s",
                            "5",
                            "-5s",
                            "+5s",
                            "5 s",
                            "5s ",
                            "5x",
                            ".5s",
                            "5.s",
                            "1.5",
                            "0.0",
                            "1..5s",
                            "1.-5s",
                            "1.5.5s",
                            "0.0000000001s",
                            "5ss",
                            "99999999999999999999s",
                            "9223372036854775807s",
                            "9000000000000d"}) {
    EXPECT_EQ(ParseDuration(wrong).ok(), false) << wrong;
  }
}

TEST(Durations, AreShownInTheTwoUnitsThatMatter) {
  EXPECT_EQ(HumanDuration(seconds(-3)), "0 s");
  EXPECT_EQ(HumanDuration(seconds(59)), "59 s");
  EXPECT_EQ(HumanDuration(seconds(60)), "1 min");
  EXPECT_EQ(HumanDuration(seconds(200)), "3 min 20 s");
  EXPECT_EQ(HumanDuration(hours(3) + minutes(20) + seconds(5)), "3 h 20 min");
  EXPECT_EQ(HumanDuration(hours(98)), "4 d 2 h");
}

}  // namespace
}  // namespace weightwire
