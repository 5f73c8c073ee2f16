#include "cli/numbers.h"

#include <gtest/gtest.h>

namespace weightwire {
namespace {

TEST(Numbers, DecimalDigitsOnly) {
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

}  // namespace
}  // namespace weightwire
