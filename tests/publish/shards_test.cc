#include "publish/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codec/format/format.h"

namespace weightwire {
namespace {

using ::testing::HasSubstr;

using Ranks = std::vector<std::shared_ptr<const Shards>>;

std::shared_ptr<const Layout> Vector(std::uint64_t elements) {
  return std::make_shared<const Layout>(Layout::Make({{"w", DType::kU8, {elements}}}, {}).value());
}

void Add(Ranks& ranks, const std::shared_ptr<const Layout>& whole, std::uint64_t start, std::uint64_t extent) {
  ranks.push_back(Shards::Make(whole, {{0, Box{{start}, {extent}}}}).value());
}

TEST(CheckCover, EveryElementOnceIsWhatIsWanted) {
  const auto whole = Vector(10);
  Ranks ranks;
  Add(ranks, whole, 6, 4);
  EXPECT_THAT(CheckCover(*whole, ranks).error().message(), HasSubstr("'w' do not cover it exactly once"));
  Add(ranks, whole, 0, 6);
  EXPECT_TRUE(CheckCover(*whole, ranks).ok());
  Add(ranks, whole, 3, 1);
  EXPECT_FALSE(CheckCover(*whole, ranks).ok());
  // As many elements as there are, but not those.
  ranks.clear();
  Add(ranks, whole, 0, 6);
  Add(ranks, whole, 5, 4);
  EXPECT_FALSE(CheckCover(*whole, ranks).ok());
}

TEST(CheckCover, MoreBoxesThanADeltaMayHaveAreRefused) {
  const auto whole = Vector(kMaxBoxesPerTensor + 1);
  Ranks ranks;
  for (std::uint64_t i = 0; i + 1 < kMaxBoxesPerTensor; ++i) Add(ranks, whole, i, 1);
  Add(ranks, whole, kMaxBoxesPerTensor - 1, 2);
  EXPECT_TRUE(CheckCover(*whole, ranks).ok());
  ranks.pop_back();
  Add(ranks, whole, kMaxBoxesPerTensor - 1, 1);
  Add(ranks, whole, kMaxBoxesPerTensor, 1);
  const Status cover = CheckCover(*whole, ranks);
  ASSERT_FALSE(cover.ok());
  EXPECT_EQ(cover.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(cover.error().message(), HasSubstr("'w' in 16385 boxes, and a delta has at most 16384"));
}

}  // namespace
}  // namespace weightwire
