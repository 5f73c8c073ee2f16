#include "store/key.h"

#include <gtest/gtest.h>

#include <string>

namespace weightwire {
namespace {

TEST(Key, AcceptsWhatTheWireUses) {
  for (const char* key : {"run.json", "versions/00000000000000000042.json", "deltas/1-2/ab.safetensors", "a", "A_-.9",
                          "anchors/1/x/.gitattributes", "...", "a/..b", "a/.weightwire"}) {
    EXPECT_TRUE(CheckKey(key).ok()) << key;
    EXPECT_TRUE(CheckKeyPrefix(key).ok()) << key;
  }
  EXPECT_TRUE(CheckKey(std::string(255, 'x') + "/" + std::string(255, 'y')).ok());
}

TEST(Key, RefusesEverythingElse) {
  for (const std::string& key : {std::string(),
                                 std::string("/a"),
                                 std::string("a/"),
                                 std::string("a//b"),
                                 std::string("."),
                                 std::string(".."),
                                 std::string("../a"),
                                 std::string("a/../b"),
                                 std::string("a/./b"),
                                 std::string("a b"),
                                 std::string("a+b"),
                                 std::string("a%2e"),
                                 std::string("a\\b"),
                                 std::string("ä"),
                                 std::string("a\0b", 3),
                                 std::string("a\nb"),
                                 std::string(".weightwire"),
                                 std::string(".weightwire/x"),
                                 std::string(256, 'x'),
                                 std::string(255, 'x') + "/" + std::string(255, 'y') + "/z"}) {
    const Status status = CheckKey(key);
    ASSERT_FALSE(status.ok()) << key;
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument) << key;
  }
}

TEST(Key, APrefixMayEndAnywhere) {
  for (const char* prefix : {"", "versions", "versions/", "versions/0000", "a/.", "a/..", "."}) {
    EXPECT_TRUE(CheckKeyPrefix(prefix).ok()) << prefix;
  }
  for (const char* prefix : {"/", "a//", "../", "a/../", ".weightwire/", "a b"}) {
    EXPECT_FALSE(CheckKeyPrefix(prefix).ok()) << prefix;
  }
}

TEST(Key, AMessageCannotWriteToATerminal) {
  const Status status = CheckKey("a\x1b[31m" + std::string(1000, 'x'));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message().find('\x1b'), std::string::npos);
  EXPECT_LT(status.error().message().size(), 300U);
}

}  // namespace
}  // namespace weightwire
