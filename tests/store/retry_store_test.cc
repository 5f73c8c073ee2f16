#include "store/wrappers/retry_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/bytes.h"
#include "store/faulty_store.h"
#include "support/manual_clock.h"

namespace weightwire {
namespace {

using std::chrono::milliseconds;
using testing::Bytes;
using testing::BytesOf;
using testing::ExpectError;
using testing::Fault;
using testing::FaultyStore;
using testing::kSmall;
using testing::Succeeds;

class RetryStoreTest : public ::testing::Test {
 protected:
  RetryStoreTest() {
    auto faulty = std::make_unique<FaultyStore>(&clock_);
    faulty_ = faulty.get();
    store_ = std::make_unique<RetryStore>(std::move(faulty), policy_, &clock_, &sleeper_, &random_);
  }

  const RetryPolicy policy_{{.first = milliseconds(100), .last = milliseconds(1000)}, milliseconds(10'000)};
  ManualClock clock_;
  ManualSleeper sleeper_{&clock_};
  SeededRandom random_{1};
  FaultyStore* faulty_ = nullptr;
  std::unique_ptr<RetryStore> store_;
};

TEST_F(RetryStoreTest, WhatFailsForNowIsTriedAgainAfterLongerAndLongerWaits) {
  ASSERT_TRUE(faulty_->memory().Put("a", BytesOf("x")).ok());
  faulty_->Plan("get", {Fault::kUnavailable, Fault::kUnavailable, Fault::kUnavailable});
  EXPECT_EQ(store_->Get("a", kSmall).value(), BytesOf("x"));
  EXPECT_EQ(faulty_->Calls("get"), 4);
  // 100, 200, 400 ms, each by up to a half less.
  EXPECT_GE(clock_.Monotonic(), milliseconds(350));
  EXPECT_LE(clock_.Monotonic(), milliseconds(700));
}

TEST_F(RetryStoreTest, WaitsDifferBetweenClients) {
  std::vector<std::chrono::nanoseconds> waits;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    ManualClock clock;
    ManualSleeper sleeper(&clock);
    SeededRandom random(seed);
    auto faulty = std::make_unique<FaultyStore>(&clock);
    faulty->Plan("remove", {Fault::kUnavailable});
    RetryStore store(std::move(faulty), policy_, &clock, &sleeper, &random);
    EXPECT_TRUE(Succeeds(store.Remove("a")));
    for (const auto wait : waits) EXPECT_NE(wait, clock.Monotonic());
    waits.push_back(clock.Monotonic());
  }
}

TEST_F(RetryStoreTest, ItEndsAtTheDeadline) {
  faulty_->PlanAlways("stat", Fault::kUnavailable);
  const auto stat = store_->Stat("a");
  ExpectError(stat, ErrorCode::kUnavailable);
  EXPECT_THAT(stat.error().message(), ::testing::HasSubstr("tried"));
  EXPECT_LE(clock_.Monotonic(), policy_.deadline);
  // Waits stop growing at one second, so there were many attempts.
  EXPECT_GT(faulty_->Calls("stat"), 10);
}

TEST_F(RetryStoreTest, AnOutageHasOneDeadlineForAllCalls) {
  RetryPolicy policy = policy_;
  policy.across_calls = true;
  auto owned = std::make_unique<FaultyStore>(&clock_);
  FaultyStore& faulty = *owned;
  RetryStore store(std::move(owned), policy, &clock_, &sleeper_, &random_);
  ASSERT_TRUE(faulty.memory().Put("a", BytesOf("x")).ok());
  faulty.PlanAlways("stat", Fault::kUnavailable);
  for (int i = 0; i < 5; ++i) ExpectError(store.Stat("a"), ErrorCode::kUnavailable);
  EXPECT_EQ(clock_.Monotonic(), policy.deadline);
  // An answer, even a refusal, ends the outage.
  ExpectError(store.Get("b", kSmall), ErrorCode::kNotFound);
  const auto before = clock_.Monotonic();
  ExpectError(store.Stat("a"), ErrorCode::kUnavailable);
  EXPECT_EQ(clock_.Monotonic() - before, policy.deadline);
}

TEST_F(RetryStoreTest, WhatWillNotPassIsNotTriedAgain) {
  faulty_->PlanAlways("get", Fault::kRefused);
  ExpectError(store_->Get("a", kSmall), ErrorCode::kRefused);
  EXPECT_EQ(faulty_->Calls("get"), 1);
  ExpectError(store_->Stat("a"), ErrorCode::kNotFound);
  EXPECT_EQ(faulty_->Calls("stat"), 1);
  EXPECT_EQ(clock_.Monotonic(), milliseconds(0));
}

TEST_F(RetryStoreTest, EveryOperationIsTriedAgain) {
  for (const char* operation :
       {"read", "put", "put-if-absent", "list", "remove", "start-upload", "write-part", "finish-upload"}) {
    faulty_->Plan(operation, {Fault::kUnavailable, Fault::kUnavailable});
  }
  Bytes out(1);
  EXPECT_TRUE(Succeeds(store_->Put("a", BytesOf("x"))));
  EXPECT_TRUE(Succeeds(store_->Read("a", 0, out)));
  EXPECT_EQ(store_->PutIfAbsent("b", BytesOf("y")).value(), PutOutcome::kCreated);
  EXPECT_EQ(store_->List("", "", 10).value().size(), 2U);
  EXPECT_TRUE(Succeeds(store_->Remove("a")));
  auto upload = store_->StartUpload("c", 3);
  ASSERT_TRUE(Succeeds(upload));
  EXPECT_TRUE(Succeeds(upload.value()->WritePart(0, BytesOf("abc"))));
  EXPECT_TRUE(Succeeds(upload.value()->Finish()));
  EXPECT_EQ(faulty_->memory().Get("c", kSmall).value(), BytesOf("abc"));
}

TEST_F(RetryStoreTest, PutAndRemoveAreRepeatedAfterALostAnswer) {
  faulty_->Plan("put", {Fault::kLostRequest, Fault::kLostAnswer});
  EXPECT_TRUE(Succeeds(store_->Put("a", BytesOf("x"))));
  EXPECT_EQ(faulty_->Calls("put"), 3);
  EXPECT_EQ(faulty_->memory().Get("a", kSmall).value(), BytesOf("x"));
  faulty_->Plan("remove", {Fault::kLostAnswer});
  EXPECT_TRUE(Succeeds(store_->Remove("a")));
}

TEST_F(RetryStoreTest, APutWhoseAnswerWasLostOnceMayHaveHappenedWhateverComesAfterIt) {
  faulty_->Plan("put", {Fault::kLostAnswer, Fault::kRefused});
  ExpectError(store_->Put("a", BytesOf("x")), ErrorCode::kUnknownOutcome);
  faulty_->Plan("put", {Fault::kLostAnswer});
  faulty_->PlanAlways("put", Fault::kUnavailable);
  ExpectError(store_->Put("a", BytesOf("x")), ErrorCode::kUnknownOutcome);
  EXPECT_EQ(faulty_->memory().Get("a", kSmall).value(), BytesOf("x"));
}

TEST_F(RetryStoreTest, ALostAnswerToPutIfAbsentIsReadBackNotRepeated) {
  faulty_->Plan("put-if-absent", {Fault::kLostAnswer});
  EXPECT_EQ(store_->PutIfAbsent("v", BytesOf("ours")).value(), PutOutcome::kCreated);
  EXPECT_EQ(faulty_->Calls("put-if-absent"), 1);
  EXPECT_EQ(faulty_->Calls("get"), 1);
}

TEST_F(RetryStoreTest, ALostAnswerToPutIfAbsentMayMeanThatAnotherWon) {
  ASSERT_TRUE(faulty_->memory().Put("v", BytesOf("theirs")).ok());
  ASSERT_TRUE(faulty_->memory().Put("w", BytesOf("theirs, longer than ours")).ok());
  faulty_->Plan("put-if-absent", {Fault::kLostAnswer, Fault::kLostAnswer});
  EXPECT_EQ(store_->PutIfAbsent("v", BytesOf("ours")).value(), PutOutcome::kExists);
  EXPECT_EQ(store_->PutIfAbsent("w", BytesOf("ours")).value(), PutOutcome::kExists);
}

TEST_F(RetryStoreTest, ALostRequestIsPutAgain) {
  faulty_->Plan("put-if-absent", {Fault::kLostRequest});
  EXPECT_EQ(store_->PutIfAbsent("v", BytesOf("ours")).value(), PutOutcome::kCreated);
  EXPECT_EQ(faulty_->Calls("put-if-absent"), 2);
}

TEST_F(RetryStoreTest, ALateRequestIsOursAlthoughTheRepetitionFindsItThere) {
  // The first arrives after we looked, so the second is answered "exists".
  faulty_->Plan("put-if-absent", {Fault::kLate});
  EXPECT_EQ(store_->PutIfAbsent("v", BytesOf("ours")).value(), PutOutcome::kCreated);
  EXPECT_EQ(faulty_->Calls("put-if-absent"), 2);
  EXPECT_EQ(faulty_->memory().Get("v", kSmall).value(), BytesOf("ours"));
}

TEST_F(RetryStoreTest, WithoutALostAnswerExistsIsBelieved) {
  ASSERT_TRUE(faulty_->memory().Put("v", BytesOf("ours")).ok());
  EXPECT_EQ(store_->PutIfAbsent("v", BytesOf("ours")).value(), PutOutcome::kExists);
  EXPECT_EQ(faulty_->Calls("get"), 0);
}

TEST_F(RetryStoreTest, WhatIsStillUnknownAtTheEndIsReportedAsThat) {
  faulty_->Plan("put-if-absent", {Fault::kLostAnswer});
  faulty_->PlanAlways("put-if-absent", Fault::kUnavailable);
  faulty_->PlanAlways("get", Fault::kUnavailable);
  ExpectError(store_->PutIfAbsent("v", BytesOf("ours")), ErrorCode::kUnknownOutcome);
  // Refused after a lost answer: it may be there all the same.
  faulty_->Plan("put-if-absent", {Fault::kLostAnswer, Fault::kRefused});
  ExpectError(store_->PutIfAbsent("w", BytesOf("ours")), ErrorCode::kUnknownOutcome);
}

TEST_F(RetryStoreTest, AFinishWhoseAnswerWasLostIsLookedFor) {
  faulty_->Plan("finish-upload", {Fault::kLostAnswer});
  auto upload = store_->StartUpload("c", 3);
  ASSERT_TRUE(Succeeds(upload));
  ASSERT_TRUE(Succeeds(upload.value()->WritePart(0, BytesOf("abc"))));
  EXPECT_TRUE(Succeeds(upload.value()->Finish()));
  EXPECT_EQ(faulty_->Calls("finish-upload"), 1);

  faulty_->Plan("finish-upload", {Fault::kLostRequest});
  auto second = store_->StartUpload("d", 3);
  ASSERT_TRUE(Succeeds(second));
  ASSERT_TRUE(Succeeds(second.value()->WritePart(0, BytesOf("abc"))));
  EXPECT_TRUE(Succeeds(second.value()->Finish()));
  EXPECT_EQ(faulty_->Calls("finish-upload"), 3);
  EXPECT_EQ(faulty_->memory().Get("d", kSmall).value(), BytesOf("abc"));
}

TEST_F(RetryStoreTest, APartWhoseAnswerWasLostIsWrittenAgain) {
  faulty_->Plan("write-part", {Fault::kLostRequest, Fault::kLostAnswer});
  auto upload = store_->StartUpload("c", 3);
  ASSERT_TRUE(Succeeds(upload));
  EXPECT_TRUE(Succeeds(upload.value()->WritePart(0, BytesOf("abc"))));
  EXPECT_EQ(faulty_->Calls("write-part"), 3);
}

TEST(RetryStore, StoppingEndsIt) {
  SystemClock clock;
  SystemSleeper sleeper;
  sleeper.Stop();
  SeededRandom random(1);
  auto faulty = std::make_unique<FaultyStore>(&clock);
  faulty->PlanAlways("get", Fault::kUnavailable);
  RetryStore store(std::move(faulty), RetryPolicy(), &clock, &sleeper, &random);
  ExpectError(store.Get("a", kSmall), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace weightwire
