#include "cli/terminal.h"

#include <gtest/gtest.h>

namespace weightwire {
namespace {

TEST(Progress, ShowsAShareOrTheTime) {
  EXPECT_EQ(Progress::Line("reading", 1, 4, std::chrono::seconds(9)), "reading … 25 %");
  EXPECT_EQ(Progress::Line("reading", 9, 4, std::chrono::seconds(9)), "reading … 100 %");
  EXPECT_EQ(Progress::Line("reading", 0, 0, std::chrono::seconds(9)), "reading … 9 s");
}

}  // namespace
}  // namespace weightwire
