#include "store/read_back.h"

#include <gtest/gtest.h>

#include "store/bytes.h"
#include "store/faulty_store.h"
#include "support/manual_clock.h"

namespace weightwire {
namespace {

using testing::BytesOf;
using testing::ExpectError;
using testing::Fault;

class PutAndReadBackTest : public ::testing::Test {
 protected:
  Result<ReadBackOutcome> PutOurs() { return PutAndReadBack(store_, "v/1", BytesOf("ours")); }

  ManualClock clock_;
  testing::FaultyStore store_{&clock_};
};

TEST_F(PutAndReadBackTest, ReadsBackAfterLostAnswer) {
  store_.Plan("put-if-absent", {Fault::kLostAnswer});
  EXPECT_EQ(PutOurs().value(), ReadBackOutcome::kOurs);
  EXPECT_EQ(store_.Calls("put-if-absent"), 1);
}

TEST_F(PutAndReadBackTest, RefusesMoreThanReadersAccept) {
  const std::vector<std::uint8_t> large(kMaxReadBackBytes + 1);
  ExpectError(PutAndReadBack(store_, "v/1", large), ErrorCode::kLimit);
  EXPECT_EQ(store_.Calls("put-if-absent"), 0);
}

TEST_F(PutAndReadBackTest, FindsConflictAfterLostAnswer) {
  ASSERT_TRUE(store_.memory().Put("v/1", BytesOf("theirs")).ok());
  store_.Plan("put-if-absent", {Fault::kLostAnswer});
  EXPECT_EQ(PutOurs().value(), ReadBackOutcome::kConflict);
  ASSERT_TRUE(store_.memory().Put("v/1", BytesOf("T")).ok());
  EXPECT_EQ(PutOurs().value(), ReadBackOutcome::kConflict);
}

TEST_F(PutAndReadBackTest, MissingObjectAfterLostAnswerIsUnknown) {
  store_.Plan("put-if-absent", {Fault::kLate});
  ExpectError(PutOurs(), ErrorCode::kUnknownOutcome);
  // It arrived after we looked; asking again finds it.
  EXPECT_EQ(PutOurs().value(), ReadBackOutcome::kOurs);
}

TEST_F(PutAndReadBackTest, FailedReadBackIsUnknown) {
  store_.Plan("put-if-absent", {Fault::kLostAnswer});
  store_.Plan("get", {Fault::kUnavailable});
  ExpectError(PutOurs(), ErrorCode::kUnknownOutcome);
  // It exists, by us or another: that is not known either.
  store_.Plan("get", {Fault::kUnavailable});
  ExpectError(PutOurs(), ErrorCode::kUnknownOutcome);
  EXPECT_EQ(PutOurs().value(), ReadBackOutcome::kOurs);
}

TEST_F(PutAndReadBackTest, DoesNotReadBackAfterRefusal) {
  store_.Plan("put-if-absent", {Fault::kRefused, Fault::kUnavailable});
  ExpectError(PutOurs(), ErrorCode::kRefused);
  ExpectError(PutOurs(), ErrorCode::kUnavailable);
  EXPECT_EQ(store_.Calls("get"), 0);
}

}  // namespace
}  // namespace weightwire
