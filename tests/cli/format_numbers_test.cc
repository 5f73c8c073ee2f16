#include "cli/format_numbers.h"

#include <gtest/gtest.h>

#include "cli/progress.h"
#include "cli/text_table.h"

namespace weightwire {
namespace {

TEST(FormatNumbers, CommasStandBetweenThousands) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1000), "1,000");
  EXPECT_EQ(WithCommas(1'234'567), "1,234,567");
  EXPECT_EQ(WithCommas(~std::uint64_t{0}), "18,446,744,073,709,551,615");
}

TEST(FormatNumbers, BytesHaveThreeDigits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.00 KiB");
  EXPECT_EQ(HumanBytes(1536 * 1024), "1.50 MiB");
  EXPECT_EQ(HumanBytes(1024 * 1024 - 1), "1.00 MiB");
  EXPECT_EQ(HumanBytes(~std::uint64_t{0}), "16.0 EiB");
}

TEST(FormatNumbers, AlmostNothingAndAlmostAllDoNotLookLikeIt) {
  EXPECT_EQ(Percent(3, 2), "150.00 %");
  EXPECT_EQ(Percent(2'000'001, 2'000'000), "100.00 %");
  EXPECT_EQ(Percent(0, 100), "0.00 %");
  EXPECT_EQ(Percent(1, 1'000'000), "<0.01 %");
  EXPECT_EQ(Percent(12, 1000), "1.20 %");
  EXPECT_EQ(Percent(999'999, 1'000'000), ">99.99 %");
  EXPECT_EQ(Percent(5, 5), "100.00 %");
  EXPECT_EQ(Percent(0, 0), "–");
}

TEST(FormatNumbers, RatiosAndTimes) {
  EXPECT_EQ(Ratio(1, 4), "0.250");
  EXPECT_EQ(Ratio(1, 0), "–");
  EXPECT_EQ(HumanSeconds(0.0000421), "42.1 µs");
  EXPECT_EQ(HumanSeconds(0.0181), "18.1 ms");
  EXPECT_EQ(HumanSeconds(2.3), "2.30 s");
  EXPECT_EQ(HumanSeconds(500), "500 s");
}

TEST(TextTable, ColumnsAreAsWideAsTheirWidestCellInCharacters) {
  TextTable table("lrl");
  table.AddRow({"name", "µs", ""});
  table.AddRow({"a", "12345", ""});
  EXPECT_EQ(table.Render(), "name     µs\na     12345\n");
}

TEST(Progress, ShowsAShareOrTheTime) {
  EXPECT_EQ(Progress::Line("reading", 1, 4, std::chrono::seconds(9)), "reading … 25 %");
  EXPECT_EQ(Progress::Line("reading", 9, 4, std::chrono::seconds(9)), "reading … 100 %");
  EXPECT_EQ(Progress::Line("reading", 0, 0, std::chrono::seconds(9)), "reading … 9 s");
}

}  // namespace
}  // namespace weightwire
