#include "publish/anchor_policy.h"

#include <gtest/gtest.h>

#include <limits>

namespace weightwire {
namespace {

KnownAnchor AnchorOf(Version version, std::uint64_t delta_bytes) {
  KnownAnchor anchor;
  anchor.manifest.name.version = version;
  anchor.manifest.delta_bytes = delta_bytes;
  return anchor;
}

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

TEST(AnchorPolicy, WithoutAnAnchorOneIsDueUnlessNoneIsWanted) {
  EXPECT_TRUE(IsAnchorDue({100, 0}, std::nullopt, 5, 0, 1000));
  EXPECT_TRUE(IsAnchorDue({0, 100}, std::nullopt, 5, 0, 1000));
  EXPECT_FALSE(IsAnchorDue({0, 0}, std::nullopt, 5, 0, 1000));
}

TEST(AnchorPolicy, VersionsOrBytesMakeOneDueWhicheverComesFirst) {
  const auto last = AnchorOf(10, 5000);
  EXPECT_FALSE(IsAnchorDue({20, 50}, last, 29, 5500, 1000));
  EXPECT_TRUE(IsAnchorDue({20, 50}, last, 30, 5500, 1000));
  EXPECT_TRUE(IsAnchorDue({20, 50}, last, 11, 5501, 1000));
  EXPECT_FALSE(IsAnchorDue({0, 50}, last, 1000, 5500, 1000));
  EXPECT_FALSE(IsAnchorDue({20, 0}, last, 29, kMost, 1000));
}

// A user who means "never" may write any number.
TEST(AnchorPolicy, HugeNumbersMeanNever) {
  const auto last = AnchorOf(10, 0);
  EXPECT_FALSE(IsAnchorDue({0, kMost}, last, 11, kMost, 1000));
  EXPECT_FALSE(IsAnchorDue({0, kMost / 7}, last, 11, 1 << 30, std::uint64_t{1} << 40));
  EXPECT_FALSE(IsAnchorDue({kMost, 0}, last, 1000, kMost, 1000));
}

TEST(AnchorBackoff, PausesDoubleAndEndAtTheLast) {
  AnchorBackoff backoff;
  EXPECT_TRUE(backoff.Allows(0));
  Version newest = 5;
  for (const Version pause : {16, 32, 64, 128, 256, 512, 1024, 2048, 2048, 2048}) {
    backoff.Abandoned(newest);
    EXPECT_FALSE(backoff.Allows(newest + pause - 1));
    EXPECT_TRUE(backoff.Allows(newest + pause)) << "and never not at all";
    newest += pause;
  }
  backoff.Completed();
  EXPECT_TRUE(backoff.Allows(0));
  backoff.Abandoned(newest);
  EXPECT_TRUE(backoff.Allows(newest + 16));
}

}  // namespace
}  // namespace weightwire
