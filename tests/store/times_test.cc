#include "store/http/times.h"

#include <gtest/gtest.h>

namespace weightwire {
namespace {

const WallTime kTime = WallTime(std::chrono::sys_days(std::chrono::year(2026) / 11 / 15)) + std::chrono::hours(8) +
                       std::chrono::minutes(45) + std::chrono::seconds(1);

TEST(Times, AreReadAsServicesWriteThem) {
  EXPECT_EQ(ParseIsoTime("2026-11-15T08:45:01Z"), kTime);
  EXPECT_EQ(ParseIsoTime("2026-11-15T08:45:01.123Z"), kTime + std::chrono::milliseconds(123));
  EXPECT_EQ(ParseIsoTime("2026-11-15T08:45:01.123456+00:00"), kTime + std::chrono::milliseconds(123));
  EXPECT_EQ(ParseHttpTime("Sun, 15 Nov 2026 08:45:01 GMT"), kTime);
  EXPECT_EQ(FormatTime(kTime), "2026-11-15 08:45:01 UTC");
}

TEST(Times, AnythingElseIsNone) {
  for (const char* text :
       {"", "2026", "2026-13-15T08:45:01Z", "2026-02-30T08:45:01Z", "2026-11-15T25:45:01Z", "2026-11-15T08:45:01",
        "2026-11-15T08:45:01.Z", "2026-11-15 08:45:01Z", "-026-11-15T08:45:01Z", "2026-11-15T08:45:01Zx"}) {
    EXPECT_EQ(ParseIsoTime(text), std::nullopt) << text;
  }
  EXPECT_EQ(ParseHttpTime(""), std::nullopt);
  EXPECT_EQ(ParseHttpTime("yesterday, at noon"), std::nullopt);
}

}  // namespace
}  // namespace weightwire
