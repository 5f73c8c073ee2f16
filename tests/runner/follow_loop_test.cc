#include "runner/follow_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "follow/mirror/mirror.h"
#include "follow/mirror/reader.h"
#include "follow/targets/memory_target.h"
#include "store/wrappers/forwarding_store.h"
#include "support/manual_clock.h"
#include "support/memory_store.h"
#include "support/run_maker.h"
#include "support/sim_file_system.h"

namespace weightwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A store whose reads fail in the way and for as long as it is told.
class FailingStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  void FailReads(std::optional<Error> error, int times = 1'000'000) {
    error_ = std::move(error);
    times_ = times;
  }
  bool refuse_puts = false;

 private:
  Result<std::vector<std::uint8_t>> DoGet(std::string_view key, std::uint64_t max_bytes) override {
    if (key.starts_with("versions/") && error_.has_value() && times_-- > 0) return *error_;
    return ForwardingStore::DoGet(key, max_bytes);
  }
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override {
    if (refuse_puts) return Error(ErrorCode::kRefused, "you may not write");
    return ForwardingStore::DoPut(key, bytes);
  }

  std::optional<Error> error_;
  int times_ = 0;
};

// Time passes only by waiting; each wait is kept, and something may happen during one.
class WatchedSleeper final : public Sleeper {
 public:
  explicit WatchedSleeper(ManualClock& clock) : clock_(clock) {}
  [[nodiscard]] bool SleepFor(std::chrono::nanoseconds duration) override {
    waits.push_back(duration);
    clock_.Advance(duration);
    return during == nullptr || during(waits.size());
  }
  std::vector<std::chrono::nanoseconds> waits;
  std::function<bool(std::size_t number)> during;  // false: the program is to end

 private:
  ManualClock& clock_;
};

class FollowLoopTest : public ::testing::Test {
 protected:
  FollowLoopTest() {
    tools_ = {&clock_, &maker_.kernels(), &maker_.pool()};
    events_.troubled = [this](const std::optional<Error>& error) {
      troubles_.push_back(error.has_value() ? error->message() : "over");
    };
    events_.applied = [this] {
      applied_.push_back(follower().status().held.value());
      return Ok();
    };
  }

  Follower& follower() {
    if (follower_ == nullptr) {
      follower_ = std::make_unique<Follower>(Run::Open(store_).value(), *used_, Id{}, FollowerOptions{}, tools_);
    }
    return *follower_;
  }
  Result<FollowEnd> Loop() { return RunFollower(follower(), options_, {&clock_, &sleeper_, &random_}, events_); }

  ManualClock clock_;
  MemoryStore memory_{&clock_};
  RunMaker maker_{memory_};
  FailingStore store_{memory_};
  WatchedSleeper sleeper_{clock_};
  SeededRandom random_{7};
  MemoryTarget target_{maker_.kernels(), maker_.pool()};
  Target* used_ = &target_;
  FollowerTools tools_;
  FollowLoopOptions options_;
  FollowLoopEvents events_;
  std::vector<std::string> troubles_;
  std::vector<Version> applied_;
  std::unique_ptr<Follower> follower_;
};

TEST_F(FollowLoopTest, OnceEndsWithTheNewestVersionAndNeverWaits) {
  for (int i = 0; i < 4; ++i) maker_.Publish();
  options_.once = true;
  EXPECT_EQ(Loop().value(), FollowEnd::kUpToDate);
  EXPECT_EQ(target_.held()->version, 3U);
  EXPECT_TRUE(target_.Verify().ok());
  EXPECT_TRUE(sleeper_.waits.empty());
}

TEST_F(FollowLoopTest, AnAnchorAndTheDeltasAfterItAreToldOfOnce) {
  for (int i = 0; i < 4; ++i) maker_.Publish();
  options_.once = true;
  ASSERT_TRUE(Loop().ok());
  EXPECT_EQ(follower().status().anchors_loaded, 1U);
  EXPECT_EQ(applied_, std::vector<Version>{3});
}

TEST_F(FollowLoopTest, EveryVersionIsToldOfIfAskedFor) {
  for (int i = 0; i < 4; ++i) maker_.Publish();
  options_.once = true;
  options_.every_version = true;
  ASSERT_TRUE(Loop().ok());
  EXPECT_EQ(applied_, (std::vector<Version>{0, 3}));  // the follower itself takes the rest in one
}

TEST_F(FollowLoopTest, AnAnchorIsToldOfWhenTheDeltasAfterItDoNotCome) {
  for (int i = 0; i < 4; ++i) maker_.Publish();
  events_.stepped = [&](FollowerStep step) {
    if (step == FollowerStep::kApply) store_.FailReads(Error(ErrorCode::kUnavailable, "the line is down"));
    return true;
  };
  options_.once = true;
  ASSERT_FALSE(Loop().ok());
  EXPECT_EQ(applied_, std::vector<Version>{0});
}

TEST_F(FollowLoopTest, OnceEndsWithNothingWhereThereIsNothing) {
  options_.once = true;
  EXPECT_EQ(Loop().value(), FollowEnd::kUpToDate);
  EXPECT_FALSE(target_.held().has_value());
}

TEST_F(FollowLoopTest, PollsUntilAVersionIsReachedAndGoesNoFurther) {
  maker_.Publish();
  options_.until = 2;
  sleeper_.during = [&](std::size_t number) {
    if (number == 3) maker_.Publish();
    if (number == 5) {
      for (int i = 0; i < 4; ++i) maker_.Publish();
    }
    return number < 100;
  };
  EXPECT_EQ(Loop().value(), FollowEnd::kReached);
  EXPECT_EQ(target_.held()->version, 2U);
  EXPECT_EQ(applied_, (std::vector<Version>{0, 1, 2}));
  ASSERT_EQ(sleeper_.waits.size(), 5U);
  for (const auto wait : sleeper_.waits) {
    EXPECT_GE(wait, milliseconds(kPollInterval) * 8 / 10);
    EXPECT_LE(wait, milliseconds(kPollInterval) * 12 / 10);
  }
  EXPECT_NE(sleeper_.waits[0], sleeper_.waits[1]);  // followers must not ask in step
}

TEST_F(FollowLoopTest, AVersionThatIsHeldAlreadyIsReached) {
  for (int i = 0; i < 4; ++i) maker_.Publish();
  options_.once = true;
  ASSERT_TRUE(Loop().ok());
  options_ = {};
  options_.until = 1;
  EXPECT_EQ(Loop().value(), FollowEnd::kReached);
  EXPECT_EQ(target_.held()->version, 3U);
}

TEST_F(FollowLoopTest, StopsWhenToldWhileWaiting) {
  maker_.Publish();
  sleeper_.during = [](std::size_t number) { return number < 3; };
  EXPECT_EQ(Loop().value(), FollowEnd::kStopped);
  EXPECT_EQ(sleeper_.waits.size(), 3U);
}

TEST_F(FollowLoopTest, StopsWhenToldBetweenSteps) {
  maker_.Publish();
  int steps = 0;
  events_.stepped = [&](FollowerStep) { return ++steps < 2; };
  EXPECT_EQ(Loop().value(), FollowEnd::kStopped);
  EXPECT_EQ(steps, 2);
}

TEST_F(FollowLoopTest, AnErrorOfTheCallerEndsIt) {
  maker_.Publish();
  events_.applied = [] { return Error(ErrorCode::kIo, "no more"); };
  EXPECT_EQ(Loop().error().message(), "no more");
  EXPECT_EQ(target_.held()->version, 0U);
}

TEST_F(FollowLoopTest, WaitsLongerEachTimeForWhatMayPassAndSaysItOnce) {
  maker_.Publish();
  options_.until = 1;
  sleeper_.during = [&](std::size_t number) {
    if (number == 1) store_.FailReads(Error(ErrorCode::kUnavailable, "the network is gone"), 12);
    if (number == 13) maker_.Publish();
    return number < 100;
  };
  EXPECT_EQ(Loop().value(), FollowEnd::kReached);
  EXPECT_EQ(troubles_, (std::vector<std::string>{"the network is gone", "over"}));
  ASSERT_GE(sleeper_.waits.size(), 13U);
  EXPECT_LE(sleeper_.waits[1], milliseconds(300));
  EXPECT_GE(sleeper_.waits[5], milliseconds(3200));
  for (std::size_t i = 9; i < 13; ++i) {
    EXPECT_GE(sleeper_.waits[i], seconds(24));
    EXPECT_LE(sleeper_.waits[i], seconds(36));
  }
}

TEST_F(FollowLoopTest, AsksSlowlyForWhatAPersonMustMend) {
  maker_.Publish();
  options_.until = 1;
  sleeper_.during = [&](std::size_t number) {
    if (number == 1) store_.FailReads(Error(ErrorCode::kRefused, "the key has expired"), 2);
    if (number == 3) store_.FailReads(Error(ErrorCode::kRefused, "the key is not allowed"), 1);
    if (number == 4) maker_.Publish();
    return number < 100;
  };
  EXPECT_EQ(Loop().value(), FollowEnd::kReached);
  EXPECT_EQ(troubles_, (std::vector<std::string>{"the key has expired", "the key is not allowed", "over"}));
  for (std::size_t i = 1; i < 4; ++i) EXPECT_GE(sleeper_.waits[i], seconds(48));
}

// A disk that fails for a while, in a way that leaves its mirror in doubt: the loop goes on once it can, and until then
// does not say that all is well.
TEST_F(FollowLoopTest, GoesOnByItselfAfterAnErrorOfTheDisk) {
  for (const std::string failing : {"sync map", "append", "sync directory", "rename"}) {
    SCOPED_TRACE(failing);
    bool fails = false;
    testing::SimDisk disk;
    testing::SimFileSystem files(disk, [&](std::string_view effect, const auto&) {
      return fails && effect == failing ? testing::SimFileSystem::Fate::kRefuse : testing::SimFileSystem::Fate::kGoOn;
    });
    auto mirror = OpenMirror(files, "mirror", {}, maker_.kernels(), maker_.pool());
    ASSERT_TRUE(mirror.ok());
    used_ = mirror.value().get();
    follower_ = nullptr;
    troubles_.clear();
    applied_.clear();
    sleeper_.waits.clear();
    if (maker_.states().empty()) maker_.Publish();
    const Version first = maker_.newest();
    options_.until = first + 3;
    sleeper_.during = [&](std::size_t number) {
      fails = number >= 2 && number < 6;
      if (number == 1 || number == 2 || number == 4) maker_.Publish();
      return number < 100;
    };
    const auto end = Loop();
    ASSERT_TRUE(end.ok()) << end.error().message();
    EXPECT_EQ(end.value(), FollowEnd::kReached);
    EXPECT_TRUE(mirror.value()->Verify().ok());
    ASSERT_FALSE(troubles_.empty());
    EXPECT_EQ(std::count(troubles_.begin(), troubles_.end(), "over"), 1);
    EXPECT_EQ(troubles_.back(), "over");
    EXPECT_EQ(applied_.back(), first + 3);
    EXPECT_TRUE(std::is_sorted(applied_.begin(), applied_.end()));
    follower_ = nullptr;
  }
}

TEST_F(FollowLoopTest, AMirrorThatIsReadForLongIsReportedOnceAndWaitedForLonger) {
  testing::SimDisk disk;
  testing::SimFileSystem files(disk);
  auto mirror = OpenMirror(files, "mirror", {}, maker_.kernels(), maker_.pool());
  ASSERT_TRUE(mirror.ok());
  used_ = mirror.value().get();
  maker_.Publish();
  options_.until = 1;
  std::optional<SharedRead> reader;
  sleeper_.during = [&](std::size_t number) {
    if (number == 1) {
      maker_.Publish();
      reader.emplace(SharedRead::Begin(files, "mirror").value());
    }
    if (number == 5) reader.reset();
    return number < 100;
  };
  EXPECT_EQ(Loop().value(), FollowEnd::kReached);
  ASSERT_EQ(troubles_.size(), 2U);
  EXPECT_EQ(troubles_[1], "over");
  ASSERT_EQ(sleeper_.waits.size(), 5U);
  EXPECT_LE(sleeper_.waits[1], milliseconds(300));
  EXPECT_GE(sleeper_.waits[4], milliseconds(1600));
  follower_ = nullptr;
}

TEST_F(FollowLoopTest, SaysOnceThatThereIsNoLeaseAndThatThereIsOneAgain) {
  maker_.Publish();
  options_.until = 3;
  store_.refuse_puts = true;
  options_.poll = seconds(200);
  sleeper_.during = [&](std::size_t number) {
    if (number < 4) maker_.Publish();
    if (number == 2) store_.refuse_puts = false;
    return number < 100;
  };
  EXPECT_EQ(Loop().value(), FollowEnd::kReached);
  ASSERT_EQ(troubles_.size(), 2U);
  EXPECT_EQ(troubles_[0], "no lease protects from gc what is still needed: you may not write");
  EXPECT_EQ(troubles_[1], "over");
}

TEST_F(FollowLoopTest, FailsAtOnceWhereAPersonWatches) {
  maker_.Publish();
  store_.FailReads(Error(ErrorCode::kRefused, "wrong key"));
  EXPECT_EQ(Loop().error().message(), "wrong key");
  options_.once = true;
  EXPECT_EQ(Loop().error().message(), "wrong key");
  EXPECT_TRUE(sleeper_.waits.empty());
}

TEST_F(FollowLoopTest, RetriesForTheGivenTimeWhereAPersonWatches) {
  maker_.Publish();
  store_.FailReads(Error(ErrorCode::kUnavailable, "overload"), 4);
  options_.once = true;
  options_.retry_for = seconds(30);
  EXPECT_EQ(Loop().value(), FollowEnd::kUpToDate);
  EXPECT_EQ(sleeper_.waits.size(), 4U);
  store_.FailReads(Error(ErrorCode::kUnavailable, "overload"));
  const auto before = clock_.Monotonic();
  EXPECT_EQ(Loop().error().message(), "overload");
  EXPECT_EQ(clock_.Monotonic() - before, seconds(30));
}

TEST_F(FollowLoopTest, AFollowerThatWasUpToDateGivesUpOnlyIfItIsTold) {
  for (const bool gives_up : {false, true}) {
    maker_.Publish();
    options_.retry_for = seconds(30);
    options_.always_gives_up = gives_up;
    sleeper_.waits.clear();
    store_.FailReads(std::nullopt);
    sleeper_.during = [&](std::size_t number) {
      if (number == 1) store_.FailReads(Error(ErrorCode::kUnavailable, "overload"));
      return number < 100;
    };
    const auto end = Loop();
    if (gives_up) {
      EXPECT_EQ(end.error().message(), "overload");
      EXPECT_LT(sleeper_.waits.size(), 20U);
    } else {
      EXPECT_EQ(end.value(), FollowEnd::kStopped);
    }
  }
}

TEST_F(FollowLoopTest, WhatNoWaitingMendsEndsIt) {
  maker_.Publish();
  sleeper_.during = [&](std::size_t number) {
    if (number == 1) store_.FailReads(Error(ErrorCode::kUnsupported, "a newer weightwire made this"));
    return number < 100;
  };
  EXPECT_EQ(Loop().error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(sleeper_.waits.size(), 1U);
}

}  // namespace
}  // namespace weightwire
