#include "base/surface.h"

#include <gtest/gtest.h>

namespace weightwire {
namespace {

TEST(SurfaceTest, MessagesSpellAnOptionAsItsSurfaceDoes) {
  EXPECT_EQ(CurrentSurface(), Surface::kCommand);
  EXPECT_EQ(FlagText("single-writer"), "--single-writer");
  EXPECT_EQ(OptionText("state-dir", "DIR"), "--state-dir DIR");
  SetSurface(Surface::kPython);
  EXPECT_EQ(FlagText("single-writer"), "single_writer=True");
  EXPECT_EQ(OptionText("state-dir", "DIR"), "state_dir=DIR");
  SetSurface(Surface::kCommand);
}

}  // namespace
}  // namespace weightwire
