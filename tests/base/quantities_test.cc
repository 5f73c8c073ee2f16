#include "base/quantities.h"

#include <gtest/gtest.h>

namespace weightwire {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

TEST(Durations, AreReadWithTheirUnit) {
  EXPECT_EQ(ParseDuration("0").value(), seconds(0));
  EXPECT_EQ(ParseDuration("5").value(), seconds(5));
  EXPECT_EQ(ParseDuration("1.5").value(), std::chrono::milliseconds(1500));
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
  for (const char* wrong :
       {"", "s", "-5s", "+5s", "5 s", "5s ", "5x", ".5s", "5.s", "1..5s", "1.-5s", "1.5.5s", "0.0000000001s", "5ss",
        "99999999999999999999s", "9223372036854775807s", "9000000000000d"}) {
    EXPECT_EQ(ParseDuration(wrong).ok(), false) << wrong;
  }
}

TEST(Sizes, AreReadWithTheirUnit) {
  EXPECT_EQ(ParseSize("0").value(), 0U);
  EXPECT_EQ(ParseSize("512").value(), 512U);
  EXPECT_EQ(ParseSize("512B").value(), 512U);
  EXPECT_EQ(ParseSize("64KiB").value(), 65'536U);
  EXPECT_EQ(ParseSize("256MiB").value(), std::uint64_t{256} << 20);
  EXPECT_EQ(ParseSize("1GB").value(), 1'000'000'000U);
  EXPECT_EQ(ParseSize("1.5GiB").value(), std::uint64_t{3} << 29);
  EXPECT_EQ(ParseSize("2kB").value(), 2'000U);
  EXPECT_EQ(ParseSize("1.999999TB").value(), 1'999'999'000'000U);
  EXPECT_EQ(ParseSize("1TiB").value(), std::uint64_t{1} << 40);
}

TEST(Sizes, OthersAreRefused) {
  for (const char* wrong : {"", "-1", "1 GB", "1gb", "1M", "GB", "1.", "1.5", "0.3KiB", "9999999TiB", "1s"}) {
    EXPECT_FALSE(ParseSize(wrong).ok()) << wrong;
  }
  EXPECT_EQ(ParseSize("1.5").error().message(),
            "'1.5' is no size of whole bytes; write for example 256MiB, 1.5GB or a number of bytes");
}

TEST(Flags, AreReadInAllUsualSpellings) {
  for (const char* yes : {"1", "true", "yes", "on", "True", "ON"}) EXPECT_TRUE(ParseFlag(yes).value()) << yes;
  for (const char* no : {"0", "false", "no", "off", "No"}) EXPECT_FALSE(ParseFlag(no).value()) << no;
  for (const char* wrong : {"", "2", "y", "maybe", " 1"}) EXPECT_FALSE(ParseFlag(wrong).ok()) << wrong;
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
