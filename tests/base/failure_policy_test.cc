#include "base/failure_policy.h"

#include <gtest/gtest.h>

namespace weightwire {
namespace {

using std::chrono::seconds;

Error Of(ErrorCode code) { return {code, "it failed"}; }

TEST(FailurePolicy, EveryErrorHasTheReactionThatItsCodePromises) {
  EXPECT_EQ(ReactionTo(Of(ErrorCode::kUnavailable)), Reaction::kRetrySoon);
  EXPECT_EQ(ReactionTo(Of(ErrorCode::kUnknownOutcome)), Reaction::kRetrySoon);
  EXPECT_EQ(ReactionTo(Of(ErrorCode::kIo)), Reaction::kRetrySlowly);
  EXPECT_EQ(ReactionTo(Of(ErrorCode::kRefused)), Reaction::kRetrySlowly);
  EXPECT_EQ(ReactionTo(Of(ErrorCode::kNotFound)), Reaction::kFetchAgain);
  EXPECT_EQ(ReactionTo(Of(ErrorCode::kCorrupt)), Reaction::kFetchAgain);
  for (const ErrorCode code :
       {ErrorCode::kInvalidArgument, ErrorCode::kMismatch, ErrorCode::kUnsupported, ErrorCode::kLimit}) {
    EXPECT_EQ(ReactionTo(Of(code)), Reaction::kGiveUp);
    EXPECT_FALSE(MaySucceedLater(Of(code)));
  }
}

TEST(Backoff, DoublesUpToTheLastPauseAndStartsOverAfterASuccess) {
  Backoff backoff({seconds(1), seconds(5), seconds(300)});
  for (const int expected : {1, 2, 4, 5, 5}) EXPECT_EQ(backoff.Next(), seconds(expected));
  EXPECT_EQ(backoff.failures(), 5);
  backoff.Reset();
  EXPECT_EQ(backoff.Next(Of(ErrorCode::kUnavailable)), seconds(1));
}

TEST(Backoff, WaitsLongForWhatAPersonMustFix) {
  Backoff backoff({seconds(1), seconds(5), seconds(300)});
  EXPECT_EQ(backoff.Next(Of(ErrorCode::kRefused)), seconds(300));
  EXPECT_EQ(backoff.Next(Of(ErrorCode::kUnavailable)), seconds(2));
}

TEST(FailurePolicy, OnlyErrorsOfTheBytesMakeAnObjectUnreadable) {
  for (const ErrorCode code : {ErrorCode::kCorrupt, ErrorCode::kLimit, ErrorCode::kUnsupported}) {
    EXPECT_TRUE(IsUnreadable(Of(code)));
  }
  // gc may delete what is unreadable, so an error of the request or the store must never count as that.
  for (const ErrorCode code : {ErrorCode::kInvalidArgument, ErrorCode::kNotFound, ErrorCode::kIo, ErrorCode::kMismatch,
                               ErrorCode::kUnknownOutcome, ErrorCode::kRefused, ErrorCode::kUnavailable}) {
    EXPECT_FALSE(IsUnreadable(Of(code)));
  }
}

TEST(Backoff, RandomPausesAreBetweenHalfAndAllOfTheExactOnes) {
  SeededRandom random(1);
  Backoff exact({seconds(1), seconds(5), seconds(300)});
  Backoff shortened({seconds(1), seconds(5), seconds(300)});
  for (int i = 0; i < 100; ++i) {
    const auto full = exact.Next();
    const auto pause = shortened.Next(random);
    EXPECT_GE(pause, full / 2);
    EXPECT_LE(pause, full);
  }
}

TEST(Backoff, NeverOverflowsHoweverOftenItFails) {
  Backoff backoff({seconds(1), seconds(60), seconds(300)});
  for (int i = 0; i < 1000; ++i) EXPECT_LE(backoff.Next(), seconds(60));
}

TEST(Outage, CountsFromTheBeginningOfWhatFailedFirst) {
  const Error transient(ErrorCode::kUnavailable, "");
  Outage outage;
  EXPECT_EQ(outage.Left(seconds(8), seconds(9)), seconds(8));
  outage.Add(transient, seconds(1));
  outage.Add(transient, seconds(5));
  EXPECT_EQ(outage.Left(seconds(10), seconds(9)), seconds(2));
  EXPECT_LT(outage.Left(seconds(7), seconds(9)), seconds(0));
  outage.Add(Error(ErrorCode::kRefused, ""), seconds(6));
  EXPECT_EQ(outage.Left(seconds(8), seconds(9)), seconds(8));
  outage.Add(transient, seconds(7));
  outage.End();
  EXPECT_EQ(outage.Left(seconds(8), seconds(9)), seconds(8));
}

}  // namespace
}  // namespace weightwire
