// The checks before a record, for a single process and for a group of ranks.
#include "publish/record_maker.h"

#include <gtest/gtest.h>

#include "codec/digest/state.h"
#include "log/limits.h"
#include "publish/group.h"

namespace weightwire::testing {
namespace {

class RecordMaker : public ::testing::TestWithParam<bool> {
 protected:
  // A call that makes version 8 of a state that version 7 has, too.
  RecordMaker() {
    const Holding holding = Hold(model_, 0, 1);
    KnownRecord parent;
    parent.record.version = 7;
    parent.record.layout = model_.layout->hash();
    parent.record.state = StateDigest(*model_.layout, DigestsOf(model_));
    request_.parent = parent;
    request_.in_shards = GetParam();
    request_.context.time = "2026-01-01T00:00:00Z";
    request_.context.layout = request_.context.layout_before = model_.layout;
    Contribution one;
    one.step = 3;
    one.layout = model_.layout->hash();
    if (GetParam()) one.shards = ToText(*holding.shards);
    one.before = GetParam() ? DigestShards(*holding.shards, holding.Bits().tensors, BestKernels(), OneThread())
                            : DigestsOf(model_);
    one.after = one.before;
    request_.contributions = {one};
  }

  const Model model_ = SmallModel(1);
  RecordRequest request_;
};
INSTANTIATE_TEST_SUITE_P(InShards, RecordMaker, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "ranks" : "one_process"; });

TEST_P(RecordMaker, MakesARecordThatFollowsItsParent) {
  const auto checked = CheckContributions(request_, nullptr);
  ASSERT_TRUE(checked.ok()) << checked.error().message();
  EXPECT_FALSE(checked.value().same);
  const auto made = MakeRecord(request_, checked.value(), std::nullopt);
  ASSERT_TRUE(made.ok()) << made.error().message();
  EXPECT_TRUE(CheckFollows(*request_.parent, made.value().known).ok());
  EXPECT_EQ(made.value().known.record.state, request_.parent->record.state);
}

TEST_P(RecordMaker, ARecordThatReadersCannotParseIsNotMade) {
  const auto checked = CheckContributions(request_, nullptr);
  ASSERT_TRUE(checked.ok());
  request_.parent->record.version = kMaxVersion;
  const auto made = MakeRecord(request_, checked.value(), std::nullopt);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), ErrorCode::kCorrupt);
}

TEST_P(RecordMaker, ABaseWithOtherBitsIsRefused) {
  request_.contributions[0].before[0] += request_.contributions[0].before[0];
  const auto checked = CheckContributions(request_, nullptr);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().code(), ErrorCode::kMismatch);
}

TEST_P(RecordMaker, ADigestThatIsMissingIsRefused) {
  request_.contributions[0].after.pop_back();
  const auto checked = CheckContributions(request_, nullptr);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace weightwire::testing
