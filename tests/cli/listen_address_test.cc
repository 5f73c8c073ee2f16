#include "cli/listen_address.h"

#include <gtest/gtest.h>

#include <string>

namespace weightwire {
namespace {

TEST(ListenAddress, HasAHostAndAPort) {
  EXPECT_EQ(ParseListenAddress("127.0.0.1:9400").value(), (ListenAddress{"127.0.0.1", 9400}));
  EXPECT_EQ(ParseListenAddress("0.0.0.0:0").value(), (ListenAddress{"0.0.0.0", 0}));
  EXPECT_EQ(ParseListenAddress("localhost:65535").value(), (ListenAddress{"localhost", 65535}));
  EXPECT_EQ(ParseListenAddress("[::1]:9400").value(), (ListenAddress{"::1", 9400}));
}

TEST(ListenAddress, IsLoopbackWithoutAHost) {
  EXPECT_EQ(ParseListenAddress(":9400").value(), (ListenAddress{"127.0.0.1", 9400}));
}

TEST(ListenAddress, IsWrittenAsItIsRead) {
  for (const char* text : {"127.0.0.1:9400", "localhost:1", "[::1]:9400"}) {
    EXPECT_EQ(TextOf(ParseListenAddress(text).value()), text);
  }
}

TEST(ListenAddress, RefusesWhatIsNone) {
  const auto refusal = [](const char* text) {
    const auto parsed = ParseListenAddress(text);
    EXPECT_FALSE(parsed.ok()) << text;
    if (parsed.ok()) return std::string();
    EXPECT_EQ(parsed.error().code(), ErrorCode::kInvalidArgument);
    return parsed.error().message();
  };
  for (const char* text : {"", "9400", "localhost", "[::1]"}) {
    EXPECT_NE(refusal(text).find("has no port"), std::string::npos) << text;
  }
  for (const char* text : {":", ":http", "localhost:-1", ":94 00"}) {
    EXPECT_NE(refusal(text).find("is no number"), std::string::npos) << text;
  }
  EXPECT_NE(refusal(":65536").find("above 65535"), std::string::npos);
  for (const char* text : {"::1:9400", "http://localhost:9400", "[::1:9400", "[]:9400"}) {
    EXPECT_NE(refusal(text).find("brackets"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace weightwire
