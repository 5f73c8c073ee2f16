#include "cli/text.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace weightwire {
namespace {

TEST(Text, CommasStandBetweenThousands) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1000), "1,000");
  EXPECT_EQ(WithCommas(1'234'567), "1,234,567");
  EXPECT_EQ(WithCommas(~std::uint64_t{0}), "18,446,744,073,709,551,615");
}

TEST(Text, BytesHaveThreeDigits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.00 KiB");
  EXPECT_EQ(HumanBytes(1536 * 1024), "1.50 MiB");
  EXPECT_EQ(HumanBytes(1024 * 1024 - 1), "1.00 MiB");
  EXPECT_EQ(HumanBytes(~std::uint64_t{0}), "16.0 EiB");
}

TEST(Text, AlmostNothingAndAlmostAllDoNotLookLikeIt) {
  EXPECT_EQ(Percent(3, 2), "150.00 %");
  EXPECT_EQ(Percent(2'000'001, 2'000'000), "100.00 %");
  EXPECT_EQ(Percent(0, 100), "0.00 %");
  EXPECT_EQ(Percent(1, 1'000'000), "<0.01 %");
  EXPECT_EQ(Percent(12, 1000), "1.20 %");
  EXPECT_EQ(Percent(999'999, 1'000'000), ">99.99 %");
  EXPECT_EQ(Percent(5, 5), "100.00 %");
  EXPECT_EQ(Percent(0, 0), "–");
}

TEST(Text, RatiosAndTimes) {
  EXPECT_EQ(Ratio(1, 4), "0.250");
  EXPECT_EQ(Ratio(1, 0), "–");
  EXPECT_EQ(HumanSeconds(0.0000421), "42.1 µs");
  EXPECT_EQ(HumanSeconds(0.0181), "18.1 ms");
  EXPECT_EQ(HumanSeconds(2.3), "2.30 s");
  EXPECT_EQ(HumanSeconds(500), "500 s");
}

TEST(ParseNumber, TakesDecimalDigitsOnly) {
  EXPECT_EQ(ParseNumber("0").value(), 0U);
  EXPECT_EQ(ParseNumber("010").value(), 10U);
  EXPECT_EQ(ParseNumber("18446744073709551615").value(), UINT64_MAX);
  for (const char* const wrong :
       {"", "-1", "-0", "+1", " 1", "1 ", "0x10", "1e3", "1.0", "18446744073709551616", "a"}) {
    const auto parsed = ParseNumber(wrong);
    ASSERT_FALSE(parsed.ok()) << wrong;
    EXPECT_EQ(parsed.error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(TextTable, ColumnsAreAsWideAsTheirWidestCellInCharacters) {
  TextTable table("lrl");
  table.AddRow({"name", "µs", ""});
  table.AddRow({"a", "12345", ""});
  EXPECT_EQ(table.Render(), "name     µs\na     12345\n");
}

}  // namespace
}  // namespace weightwire
