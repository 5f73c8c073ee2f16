// A run in memory, a follower of it, and a store between them that fails as told.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "follow/follower.h"
#include "follow/targets/memory_target.h"
#include "support/manual_clock.h"
#include "support/memory_store.h"
#include "support/run_maker.h"

namespace weightwire {

// Counts requests, and spoils answers where told to.
class SpoiledStore final : public Store {
 public:
  explicit SpoiledStore(Store& store) : store_(store) {}

  std::vector<std::string> requests;
  std::function<std::optional<Error>(std::string_view call, std::string_view key)> fail;
  std::set<std::string, std::less<>> damaged;  // their first byte is flipped on the way
  std::set<std::string, std::less<>> damaged_once;

  [[nodiscard]] std::string Name() const override { return store_.Name(); }
  Result<WallTime> Now() override { return store_.Now(); }

 private:
  std::optional<Error> Ask(std::string_view call, std::string_view key) {
    {
      const std::lock_guard lock(mutex_);
      requests.push_back(std::string(call) + " " + std::string(key));
    }
    return fail ? fail(call, key) : std::nullopt;
  }
  void Damage(std::string_view key, std::span<std::uint8_t> bytes) {
    const std::lock_guard lock(mutex_);
    const bool once = damaged_once.erase(std::string(key)) != 0;
    if ((once || damaged.contains(key)) && !bytes.empty()) bytes[0] ^= 1;
  }

  Result<std::vector<std::uint8_t>> DoGet(std::string_view key, std::uint64_t max_bytes) override {
    if (const auto error = Ask("get", key); error.has_value()) return *error;
    return store_.Get(key, max_bytes);
  }
  Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) override {
    if (const auto error = Ask("read", key); error.has_value()) return *error;
    WW_RETURN_IF_ERROR(store_.Read(key, offset, out));
    Damage(key, out);
    return Ok();
  }
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override {
    if (const auto error = Ask("put", key); error.has_value()) return *error;
    return store_.Put(key, bytes);
  }
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override {
    if (const auto error = Ask("create", key); error.has_value()) return *error;
    return store_.PutIfAbsent(key, bytes);
  }
  Result<ObjectInfo> DoStat(std::string_view key) override {
    if (const auto error = Ask("stat", key); error.has_value()) return *error;
    return store_.Stat(key);
  }
  Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view start_after,
                                         std::size_t limit) override {
    if (const auto error = Ask("list", prefix); error.has_value()) return *error;
    return store_.List(prefix, start_after, limit);
  }
  Status DoRemove(std::string_view key) override {
    if (const auto error = Ask("remove", key); error.has_value()) return *error;
    return store_.Remove(key);
  }

  Store& store_;
  std::mutex mutex_;  // a follower may ask several things at a time
};

class FollowerTest : public ::testing::Test {
 protected:
  FollowerTest() : inner_(&clock_), store_(inner_), maker_(store_), target_(maker_.kernels(), maker_.pool()) {}

  Follower MakeFollower(FollowerOptions options = {.name = "test"}) {
    return Follower(Run::Open(store_).value(), target_, NewId(maker_.random()), options,
                    {&clock_, &maker_.kernels(), &maker_.pool()});
  }

  // Steps until there is nothing to do. What it did on the way.
  std::vector<FollowerStep> Run_(Follower& follower) {
    std::vector<FollowerStep> steps;
    for (int i = 0; i < 10'000; ++i) {
      const auto step = follower.Step();
      EXPECT_TRUE(step.ok()) << step.error().message();
      if (!step.ok() || step.value() == FollowerStep::kUpToDate) return steps;
      steps.push_back(step.value());
    }
    ADD_FAILURE() << "it does not come to an end";
    return steps;
  }

  void ExpectHolds(Version version) {
    ASSERT_TRUE(target_.held().has_value());
    ASSERT_EQ(target_.held()->version, version);
    const TestState& state = maker_.states()[version];
    ASSERT_EQ(target_.layout().hash(), state.layout->hash());
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
      const auto bytes = target_.bytes(i);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), state.tensors[i].begin(), state.tensors[i].end()))
          << "tensor " << i << " of version " << version;
    }
    EXPECT_TRUE(target_.Check().ok());
  }

  std::string PartOf(Version version) { return maker_.records()[version].record.delta->front().key; }

  ManualClock clock_;
  MemoryStore inner_;
  SpoiledStore store_;
  RunMaker maker_;
  MemoryTarget target_;
};

}  // namespace weightwire
