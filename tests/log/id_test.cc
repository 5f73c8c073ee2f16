#include "log/id.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

namespace weightwire {
namespace {

TEST(Id, WritesLowerCaseHex) {
  Id id;
  id.bytes = {0x00, 0x01, 0x0f, 0x10, 0xab, 0xcd, 0xef, 0xff, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(ToHex(id), "00010f10abcdefff0102030405060708");
  EXPECT_EQ(IdFromHex("00010f10abcdefff0102030405060708"), id);
}

TEST(Id, AcceptsOneSpellingOnly) {
  EXPECT_EQ(IdFromHex(""), std::nullopt);
  EXPECT_EQ(IdFromHex("00010F10ABCDEFFF0102030405060708"), std::nullopt);
  EXPECT_EQ(IdFromHex("0010f10abcdefff0102030405060708"), std::nullopt);
  EXPECT_EQ(IdFromHex("00010f10abcdefff01020304050607080"), std::nullopt);
  EXPECT_EQ(IdFromHex("00010f10abcdefff010203040506070g"), std::nullopt);
  EXPECT_EQ(IdFromHex("00010f10abcdefff010203040506070 "), std::nullopt);
  EXPECT_EQ(IdFromHex("00010f10abcdefff010203040506070/"), std::nullopt);
  EXPECT_EQ(IdFromHex("00010f10abcdefff010203040506070:"), std::nullopt);
  EXPECT_EQ(IdFromHex("00010f10abcdefff010203040506070`"), std::nullopt);
}

TEST(Id, NewOnesDiffer) {
  SeededRandom random(1);
  std::set<Id> seen;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(NewId(random)).second);
}

RC_GTEST_PROP(IdProperty, ReadsBack, (std::uint64_t seed)) {
  SeededRandom random(seed);
  const Id id = NewId(random);
  RC_ASSERT(IdFromHex(ToHex(id)) == id);
}

}  // namespace
}  // namespace weightwire
