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
#include "store/wrappers/forwarding_store.h"
#include "support/manual_clock.h"
#include "support/memory_store.h"
#include "support/run_maker.h"

namespace weightwire {

// Counts requests, and spoils answers where told to.
class SpoiledStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  std::vector<std::string> requests;
  std::function<std::optional<Error>(std::string_view call, std::string_view key)> fail;
  std::set<std::string, std::less<>> damaged;  // their first byte is flipped on the way
  std::set<std::string, std::less<>> damaged_once;

 private:
  Status Around(StoreRequest& request, const Send& send) override {
    if (request.operation == StoreOperation::kNow) return send();
    const std::string_view call = NameOf(request.operation);
    {
      const std::lock_guard lock(mutex_);
      requests.push_back(std::string(call) + " " + std::string(request.key));
    }
    const std::optional<Error> error = fail ? fail(call, request.key) : std::nullopt;
    return error.has_value() ? *error : send();
  }
  Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) override {
    WW_RETURN_IF_ERROR(ForwardingStore::DoRead(key, offset, out));
    const std::lock_guard lock(mutex_);
    const bool once = damaged_once.erase(std::string(key)) != 0;
    if ((once || damaged.contains(key)) && !out.empty()) out[0] ^= 1;
    return Ok();
  }

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
    EXPECT_TRUE(target_.Verify().ok());
  }

  std::string PartOf(Version version) { return maker_.records()[version].record.delta->front().key; }

  ManualClock clock_;
  MemoryStore inner_;
  SpoiledStore store_;
  RunMaker maker_;
  MemoryTarget target_;
};

}  // namespace weightwire
