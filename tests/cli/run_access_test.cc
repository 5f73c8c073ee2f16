#include "cli/run_access.h"

#include <gtest/gtest.h>

namespace weightwire {
namespace {

TEST(RunAddress, AVersionIsANumberAfterTheLastAt) {
  const auto parse = [](const char* text) { return ParseRunAddress(text).value(); };
  EXPECT_EQ(parse("/a/b@7").location, "/a/b");
  EXPECT_EQ(parse("/a/b@7").version, 7U);
  EXPECT_EQ(parse("/a@1/b@0").location, "/a@1/b");
  EXPECT_EQ(parse("/a@1/b@0").version, 0U);
  for (const char* plain : {"/a/b", "/a@1/b", "s3://me@host/x", "/a@", "/a@7b", "/a@-1", "@"}) {
    EXPECT_EQ(parse(plain).location, plain);
    EXPECT_FALSE(parse(plain).version.has_value()) << plain;
  }
  EXPECT_EQ(ParseRunAddress("/a@99999999999999999999").error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace weightwire
