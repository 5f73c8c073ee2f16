#include "store/commit.h"

#include <gtest/gtest.h>

#include "store/bytes.h"
#include "store/faulty_store.h"
#include "support/manual_clock.h"

namespace weightwire {
namespace {

using testing::BytesOf;
using testing::ExpectError;
using testing::Fault;

class CommitTest : public ::testing::Test {
 protected:
  Result<CommitOutcome> CommitOurs() { return Commit(store_, "v/1", BytesOf("ours")); }

  ManualClock clock_;
  testing::FaultyStore store_{&clock_};
};

TEST_F(CommitTest, ALostAnswerIsReadBack) {
  store_.Plan("put-if-absent", {Fault::kLostAnswer});
  EXPECT_EQ(CommitOurs().value(), CommitOutcome::kOurs);
  EXPECT_EQ(store_.Calls("put-if-absent"), 1);
}

TEST_F(CommitTest, WhatNobodyWouldReadIsRefused) {
  const std::vector<std::uint8_t> large(kMaxCommitBytes + 1);
  ExpectError(Commit(store_, "v/1", large), ErrorCode::kLimit);
  EXPECT_EQ(store_.Calls("put-if-absent"), 0);
}

TEST_F(CommitTest, ALostAnswerMayHideThatAnotherWon) {
  ASSERT_TRUE(store_.memory().Put("v/1", BytesOf("theirs")).ok());
  store_.Plan("put-if-absent", {Fault::kLostAnswer});
  EXPECT_EQ(CommitOurs().value(), CommitOutcome::kConflict);
  ASSERT_TRUE(store_.memory().Put("v/1", BytesOf("T")).ok());
  EXPECT_EQ(CommitOurs().value(), CommitOutcome::kConflict);
}

TEST_F(CommitTest, NotThereAfterALostAnswerIsNotFailure) {
  store_.Plan("put-if-absent", {Fault::kLate});
  ExpectError(CommitOurs(), ErrorCode::kUnknownOutcome);
  // It arrived after we looked; asking again finds it.
  EXPECT_EQ(CommitOurs().value(), CommitOutcome::kOurs);
}

TEST_F(CommitTest, WhatCannotBeReadBackStaysUnknown) {
  store_.Plan("put-if-absent", {Fault::kLostAnswer});
  store_.Plan("get", {Fault::kUnavailable});
  ExpectError(CommitOurs(), ErrorCode::kUnknownOutcome);
  // It exists, by us or another: that is not known either.
  store_.Plan("get", {Fault::kUnavailable});
  ExpectError(CommitOurs(), ErrorCode::kUnknownOutcome);
  EXPECT_EQ(CommitOurs().value(), CommitOutcome::kOurs);
}

TEST_F(CommitTest, ARefusalIsJustThat) {
  store_.Plan("put-if-absent", {Fault::kRefused, Fault::kUnavailable});
  ExpectError(CommitOurs(), ErrorCode::kRefused);
  ExpectError(CommitOurs(), ErrorCode::kUnavailable);
  EXPECT_EQ(store_.Calls("get"), 0);
}

}  // namespace
}  // namespace weightwire
