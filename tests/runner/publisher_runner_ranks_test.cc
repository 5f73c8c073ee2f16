// Ranks with their threads, and a board that other threads bring to and fro.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "codec/models.h"
#include "follow/rebuild.h"
#include "follow/targets/memory_target.h"
#include "runner/publisher_runner.h"
#include "support/memory_store.h"

namespace weightwire {
namespace {

using testing::BestKernels;
using testing::Model;
using testing::ModelOf;

constexpr std::uint64_t kRanks = 3;
constexpr std::uint64_t kRows = 31;
constexpr std::uint64_t kColumns = 64;

// Thread safety: any.
class Board {
 public:
  void Put(const std::string& key, const std::string& text) {
    const std::lock_guard lock(mutex_);
    texts_[key] = text;
  }
  std::optional<std::string> Get(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = texts_.find(key);
    return found == texts_.end() ? std::nullopt : std::optional(found->second);
  }
  void Remove(const std::string& key) {
    const std::lock_guard lock(mutex_);
    texts_.erase(key);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> texts_;
};

class RankProcess {
 public:
  RankProcess(MemoryStore& bucket, Board& board, std::uint64_t rank, const std::string& start)
      : board_(board), random_(rank + 1), pool_(1) {
    PublisherOptions options;
    options.group.emplace().rank = rank;
    options.group->ranks = kRanks;
    options.anchor_every = 3;
    PublisherTools tools;
    tools.clock = &clock_;
    tools.random = &random_;
    tools.kernels = &BestKernels();
    tools.pool = &pool_;
    runner_ = PublisherRunner::Open(Run::Open(bucket).value(), options, tools, start).value();
    pump_ = std::thread([this] { Pump(); });
  }
  ~RankProcess() {
    stop_ = true;
    pump_.join();
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  PublisherRunner& operator*() { return *runner_; }
  PublisherRunner* operator->() { return runner_.get(); }

 private:
  void Pump() {
    while (!stop_) {
      const PublisherRunner::BoardWork work = runner_->NextBoardWork(std::chrono::milliseconds(1));
      for (const BoardMessage& message : work.outgoing) board_.Put(message.key, message.text);
      for (const std::string& key : work.wanted) {
        if (const auto text = board_.Get(key); text.has_value()) runner_->Deliver(key, *text);
      }
      for (const std::string& key : work.unneeded) board_.Remove(key);
      runner_->BoardDone();
    }
  }

  Board& board_;
  SystemClock clock_;
  SeededRandom random_;
  ThreadPool pool_;
  std::unique_ptr<PublisherRunner> runner_;
  std::atomic<bool> stop_ = false;
  std::thread pump_;
};

TEST(PublisherRunnerRanks, WhatWasNotPutIsGivenAgain) {
  SystemClock clock;
  MemoryStore bucket(&clock);
  SeededRandom random(9);
  ThreadPool pool(1);
  PublisherOptions options;
  options.group.emplace();
  const auto runner = PublisherRunner::Open(Run::Create(bucket, false, random).value(), options,
                                            {&clock, &random, nullptr, &BestKernels(), &pool}, "")
                          .value();
  const Ticket ticket = runner->Refuse(0, {ErrorCode::kInvalidArgument, "there is nothing"});
  const auto given = runner->NextBoardWork(std::chrono::seconds(60));
  ASSERT_FALSE(given.outgoing.empty());
  // The connection breaks before they are there.
  const auto again = runner->NextBoardWork(std::chrono::seconds(60));
  ASSERT_FALSE(again.outgoing.empty());
  EXPECT_EQ(again.outgoing[0].key, given.outgoing[0].key);
  runner->BoardDone();
  runner->Deliver(again.outgoing[0].key, again.outgoing[0].text);
  const auto verdict = runner->NextBoardWork(std::chrono::seconds(60));
  ASSERT_FALSE(verdict.outgoing.empty());
  EXPECT_NE(verdict.outgoing[0].key, given.outgoing[0].key);
}

TEST(PublisherRunnerRanks, RanksWithThreadsPublishTogether) {
  SystemClock clock;
  MemoryStore bucket(&clock);
  SeededRandom random(9);
  ASSERT_TRUE(Run::Create(bucket, false, random).ok());
  Board board;
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (std::uint64_t rank = 0; rank < kRanks; ++rank) {
    const std::string start = rank == 0 ? "" : (*ranks[0])->start();
    ranks.push_back(std::make_unique<RankProcess>(bucket, board, rank, start));
  }
  testing::Random weights(1);
  Model model = ModelOf({{{"w", DType::kBF16, {kRows, kColumns}}, testing::WeightLikeBf16(weights, kRows * kColumns)}});
  // Each rank trains and publishes at its own pace: none waits for another.
  constexpr std::uint64_t kVersions = 12;
  std::vector<Model> models;
  for (std::uint64_t v = 0; v < kVersions; ++v) {
    models.push_back(model);
    testing::StepBf16(weights, model["w"], 20);
  }
  std::vector<std::thread> trainers;
  for (std::uint64_t rank = 0; rank < kRanks; ++rank) {
    trainers.emplace_back([&, rank] {
      const std::uint64_t chunk = (kRows + kRanks - 1) / kRanks;
      const std::uint64_t begin = rank * chunk;
      const std::uint64_t rows = std::min(kRows - begin, chunk);
      const auto shards = Shards::Make(model.layout, {{0, Box{{begin, 0}, {rows, kColumns}}}}).value();
      Ticket last;
      for (std::uint64_t v = 0; v < kVersions; ++v) {
        const std::span<const std::uint8_t> all = models[v].tensors[0];
        const StateBits bits{shards->own(), {all.subspan(begin * kColumns * 2, rows * kColumns * 2)}, {}, shards};
        auto ticket = (*ranks[rank])->Publish(bits, v);
        ASSERT_TRUE(ticket.ok()) << ticket.error().message();
        last = ticket.value();
      }
      EXPECT_EQ(NameOf((*ranks[rank])->Wait(last).stage), "committed");
      EXPECT_TRUE((*ranks[rank])->Flush());
    });
  }
  for (std::thread& trainer : trainers) trainer.join();
  ThreadPool pool(1);
  for (std::uint64_t v = 0; v < kVersions; ++v) {
    MemoryTarget target(BestKernels(), pool);
    const Status rebuilt =
        Rebuild(Run::Open(bucket).value(), v, target, NewId(random), {}, {&clock, &BestKernels(), &pool});
    ASSERT_TRUE(rebuilt.ok()) << rebuilt.error().message();
    EXPECT_TRUE(std::ranges::equal(target.bytes(0), models[v].tensors[0])) << "version " << v;
  }
}

}  // namespace
}  // namespace weightwire
