#include "follow/targets/array_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "follow/follower.h"
#include "support/manual_clock.h"
#include "support/memory_store.h"
#include "support/run_maker.h"

namespace weightwire {
namespace {

using ::testing::HasSubstr;

class ArrayTargetTest : public ::testing::Test {
 protected:
  ArrayTargetTest() : store_(&clock_), maker_(store_) {
    maker_.Publish();
    const TestState& state = maker_.states()[0];
    memory_ = state.tensors;
    for (auto& bytes : memory_) bytes.assign(bytes.size(), 0);
    for (std::size_t i = 0; i < memory_.size(); ++i) arrays_.push_back({state.layout->tensors()[i], memory_[i]});
  }

  void MakeTarget(const ArrayTargetOptions& array_options = {}) {
    follower_.reset();
    target_ = ArrayTarget::Make(arrays_, maker_.kernels(), maker_.pool(), array_options).value();
    FollowerOptions options;
    options.apply_at_once = false;
    follower_.emplace(maker_.run(), *target_, NewId(maker_.random()), options,
                      FollowerTools{&clock_, &maker_.kernels(), &maker_.pool()});
  }

  Status StepOn() {
    while (true) {
      WW_TRY(const FollowerStep step, follower_->Step());
      if (step == FollowerStep::kUpToDate) return Ok();
    }
  }

  void FollowTo(Version version) {
    ASSERT_TRUE(StepOn().ok());
    if (follower_->HasStaged()) {
      ASSERT_TRUE(follower_->Apply().ok());
    }
    ASSERT_EQ(target_->held()->version, version);
    EXPECT_EQ(memory_, maker_.states()[version].tensors);
    EXPECT_TRUE(target_->Verify().ok());
  }

  ManualClock clock_;
  MemoryStore store_;
  RunMaker maker_;
  std::vector<std::vector<std::uint8_t>> memory_;
  std::vector<TargetArray> arrays_;
  std::unique_ptr<ArrayTarget> target_;
  std::optional<Follower> follower_;
};

TEST_F(ArrayTargetTest, ArraysChangeOnceByALoadAndTheDeltasAfterIt) {
  maker_.Publish();
  MakeTarget();
  const auto before = memory_;
  ASSERT_TRUE(StepOn().ok());
  EXPECT_EQ(memory_, before);
  EXPECT_FALSE(target_->held().has_value());
  EXPECT_EQ(follower_->status().staged, 1U);
  FollowTo(1);
}

TEST_F(ArrayTargetTest, ALoadWithDeltasIsTakenBackAsOneChange) {
  MakeTarget();
  FollowTo(0);
  maker_.Publish();
  maker_.Publish(/*rebase=*/true);
  maker_.Publish();
  FollowTo(3);
  ASSERT_TRUE(follower_->Undo().ok());
  EXPECT_EQ(target_->held()->version, 0U);
  EXPECT_EQ(memory_, maker_.states()[0].tensors);
}

TEST_F(ArrayTargetTest, ArraysThatSomethingElseHasWrittenToHoldNoVersion) {
  MakeTarget();
  FollowTo(0);
  maker_.Publish();
  FollowTo(1);
  memory_[0][0] ^= 1;
  EXPECT_EQ(follower_->Verify().error().code(), ErrorCode::kCorrupt);
  EXPECT_FALSE(target_->held().has_value());
  EXPECT_EQ(target_->Undo().error().code(), ErrorCode::kInvalidArgument);
  FollowTo(1);
  EXPECT_EQ(follower_->status().anchors_loaded, 2U);
}

TEST_F(ArrayTargetTest, ChangesAreAppliedAndTakenBackInPlace) {
  MakeTarget();
  FollowTo(0);
  maker_.Publish();
  maker_.Publish();
  FollowTo(2);
  ASSERT_TRUE(target_->Undo().ok());
  EXPECT_EQ(memory_, maker_.states()[0].tensors);
  EXPECT_TRUE(target_->Verify().ok());
  EXPECT_EQ(target_->Undo().error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(ArrayTargetTest, ACopiedVersionIsTakenBackToTheOneBefore) {
  MakeTarget();
  FollowTo(0);
  maker_.Publish(/*rebase=*/true);
  FollowTo(1);
  ASSERT_TRUE(target_->Undo().ok());
  EXPECT_EQ(memory_, maker_.states()[0].tensors);
  EXPECT_EQ(target_->held()->version, 0);
}

TEST_F(ArrayTargetTest, TheFirstCopiedVersionCannotBeTakenBack) {
  MakeTarget();
  FollowTo(0);
  EXPECT_EQ(target_->Undo().error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(memory_, maker_.states()[0].tensors);
}

TEST_F(ArrayTargetTest, BothNamesOfATiedTensorGetItsBits) {
  std::vector<std::uint8_t> tied(memory_[0].size());
  arrays_.push_back({{"tied", arrays_[0].spec.dtype, arrays_[0].spec.shape}, tied});
  MakeTarget();
  FollowTo(0);
  EXPECT_EQ(tied, maker_.states()[0].tensors[0]);
  maker_.Publish();
  FollowTo(1);
  EXPECT_EQ(tied, maker_.states()[1].tensors[0]);
  tied[0] ^= 1;
  EXPECT_EQ(target_->Verify().error().code(), ErrorCode::kCorrupt);
}

TEST_F(ArrayTargetTest, ArraysOfAnotherLayoutAreRefusedUntouched) {
  arrays_.pop_back();
  MakeTarget();
  const auto before = memory_;
  const Status status = StepOn();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("there is no array 'norm'"));
  EXPECT_EQ(memory_, before);
}

TEST_F(ArrayTargetTest, WhatTheArraysHoldIsFoundByItsDigest) {
  maker_.Publish();
  for (std::size_t i = 0; i < memory_.size(); ++i) std::ranges::copy(maker_.states()[0].tensors[i], memory_[i].begin());
  MakeTarget();
  const Layout& layout = *maker_.states()[0].layout;
  EXPECT_EQ(target_->DigestAs(layout).value(), maker_.records()[0].record.state);
  EXPECT_EQ(target_->Adopt(HeldOf(maker_.records()[1]), layout).error().code(), ErrorCode::kMismatch);
  ASSERT_TRUE(target_->Adopt(HeldOf(maker_.records()[0]), layout).ok());
  FollowTo(1);
  EXPECT_EQ(follower_->status().anchors_loaded, 0);
}

// Returns a unit of a tensor that differs between two states, or one that does not.
std::size_t UnitThat(bool changes, const TestState& before, const TestState& after, std::size_t tensor) {
  const auto width = static_cast<std::size_t>(UnitBytes(before.layout->tensors()[tensor].dtype));
  for (std::size_t at = 0; at < before.tensors[tensor].size(); at += width) {
    const bool differs = !std::equal(before.tensors[tensor].begin() + static_cast<std::ptrdiff_t>(at),
                                     before.tensors[tensor].begin() + static_cast<std::ptrdiff_t>(at + width),
                                     after.tensors[tensor].begin() + static_cast<std::ptrdiff_t>(at));
    if (differs == changes) return at;
  }
  ADD_FAILURE() << "there is no such unit";
  return 0;
}

TEST_F(ArrayTargetTest, AForeignWriteIsFoundWhileAnUpdateIsStaged) {
  for (const bool changes : {true, false}) {
    SCOPED_TRACE(changes);
    MakeTarget();
    FollowTo(maker_.states().size() - 1);
    const TestState before = maker_.states().back();
    maker_.Publish();
    memory_[0][UnitThat(changes, before, maker_.states().back(), 0)] ^= 1;
    ASSERT_TRUE(StepOn().ok());
    EXPECT_FALSE(target_->held().has_value());
    EXPECT_THAT(follower_->status().last_error, HasSubstr("something else has written"));
    EXPECT_EQ(follower_->Staged(), nullptr) << "it is a load";
    EXPECT_EQ(follower_->Undo().error().code(), ErrorCode::kInvalidArgument);
    FollowTo(maker_.states().size() - 1);
    EXPECT_EQ(follower_->status().last_error, "");
    EXPECT_EQ(follower_->Undo().error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST_F(ArrayTargetTest, AForeignWriteAfterStagingAbortsApplyBeforeTheFirstWrite) {
  for (const bool verify_base : {true, false}) {
    SCOPED_TRACE(verify_base);
    MakeTarget({.verify_base = verify_base});
    FollowTo(maker_.states().size() - 1);
    const TestState before = maker_.states().back();
    maker_.Publish();
    ASSERT_TRUE(StepOn().ok());
    ASSERT_NE(follower_->Staged(), nullptr);
    memory_[0][UnitThat(true, before, maker_.states().back(), 0)] ^= 1;
    const auto altered = memory_;
    EXPECT_EQ(follower_->Apply().error().code(), ErrorCode::kCorrupt);
    EXPECT_EQ(memory_, altered);
    EXPECT_FALSE(target_->held().has_value());
    EXPECT_FALSE(follower_->HasStaged());
    FollowTo(maker_.states().size() - 1);
  }
}

TEST_F(ArrayTargetTest, AForeignWriteAfterAnUpdateKeepsItFromBeingTakenBack) {
  MakeTarget();
  FollowTo(0);
  maker_.Publish();
  FollowTo(1);
  memory_[0][UnitThat(true, maker_.states()[0], maker_.states()[1], 0)] ^= 1;
  const auto altered = memory_;
  EXPECT_EQ(follower_->Undo().error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(memory_, altered);
  FollowTo(1);
}

TEST_F(ArrayTargetTest, AForeignWriteElsewhereIsLeftToVerifyIfTheBaseIsNotVerified) {
  MakeTarget({.verify_base = false});
  FollowTo(0);
  maker_.Publish();
  memory_[0][UnitThat(false, maker_.states()[0], maker_.states()[1], 0)] ^= 1;
  ASSERT_TRUE(StepOn().ok());
  ASSERT_TRUE(follower_->Apply().ok());
  EXPECT_EQ(follower_->Verify().error().code(), ErrorCode::kCorrupt);
  EXPECT_FALSE(target_->held().has_value());
  FollowTo(1);
}

}  // namespace
}  // namespace weightwire
