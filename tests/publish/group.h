// Ranks that publish together, in one thread: a board that is a map, a bucket in memory, and time that passes when told
// to. A single process, which has no board, is handled by the same tests. What they make is read as any follower would.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "follow/rebuild.h"
#include "follow/targets/memory_target.h"
#include "follow/verify.h"
#include "publish/publisher.h"
#include "publish/world.h"
#include "support/holding.h"

namespace weightwire::testing {

inline Holding Hold(const Model& model, std::uint64_t rank, std::uint64_t ranks) {
  return Hold(model.layout, model.tensors, rank, ranks);
}

// The state that a publisher is given: all of it, or a rank's shards.
inline constexpr std::uint64_t kOneProcess = 0;

// Ranks that start together; or one process that has no board, if `ranks` is kOneProcess.
class Group {
 public:
  using Hook = SimStore::Hook;

  Group(World& world, std::uint64_t ranks, PublisherOptions options = {}, std::map<std::uint64_t, Hook> hooks = {})
      : world_(world), files_(world.disk, {}) {
    if (ranks != kOneProcess && !options.group.has_value()) options.group.emplace();
    std::string start;
    for (std::uint64_t rank = 0; rank < std::max(ranks, std::uint64_t{1}); ++rank) {
      stores_.push_back(std::make_unique<SimStore>(world.bucket, hooks[rank]));
      if (options.group.has_value()) {
        options.group->rank = rank;
        options.group->ranks = ranks;
      }
      auto opened = Publisher::Open(weightwire::Run::Open(*stores_.back()).value(), options,
                                    {&world.clock, &world.random, &files_, &BestKernels(), &OneThread()}, start);
      EXPECT_TRUE(opened.ok()) << opened.error().message();
      if (rank == 0 && options.group.has_value()) start = opened.value()->start();
      ranks_.push_back(std::move(opened).value());
    }
    has_board_ = options.group.has_value();
  }

  Publisher& operator[](std::uint64_t rank) { return *ranks_[rank]; }
  [[nodiscard]] std::uint64_t size() const { return ranks_.size(); }
  [[nodiscard]] const std::map<std::string, std::string>& board() const { return board_; }

  // As the runner does it.
  Result<Ticket> Publish(std::uint64_t rank, const Model& model, std::uint64_t step) {
    const Admission admission = ranks_[rank]->Admit();
    if (admission.stopped.has_value()) return *admission.stopped;
    if (admission.disconnected.has_value()) {
      ranks_[rank]->Refuse(step, *admission.disconnected);
      return *admission.disconnected;
    }
    EXPECT_FALSE(admission.full);
    Holding holding;
    if (has_board_) holding = Hold(model, rank, size());
    auto draft = ranks_[rank]->Make(has_board_ ? holding.Bits() : BitsOf(model), step, admission);
    if (!draft.ok()) {
      ranks_[rank]->Refuse(step, draft.error());
      return draft.error();
    }
    if (!draft.value().has_value()) return Error(ErrorCode::kUnavailable, "wait");
    return ranks_[rank]->Enqueue(*std::move(draft).value());
  }
  std::vector<Ticket> PublishAll(const Model& model, std::uint64_t step) {
    std::vector<Ticket> tickets;
    for (std::uint64_t rank = 0; rank < size(); ++rank) {
      auto ticket = Publish(rank, model, step);
      EXPECT_TRUE(ticket.ok()) << ticket.error().message();
      tickets.push_back(ticket.ok() ? ticket.value() : std::make_shared<TicketStatus>());
    }
    return tickets;
  }

  // Version 0, to its end.
  void PublishFirst(const Model& model) {
    const std::vector<Ticket> tickets = PublishAll(model, 0);
    WorkUntilIdle();
    for (const Ticket& ticket : tickets) EXPECT_EQ(ticket->version, 0U);
  }

  // A rank does not get a message as it was sent.
  void Garble(std::uint64_t rank, const std::string& key) { garbled_.insert({rank, key}); }

  // A rank that does nothing any more.
  void Silence(std::uint64_t rank) { silent_.insert(rank); }
  void Wake(std::uint64_t rank) { silent_.erase(rank); }

  // One round of everybody; false if nobody had anything to do.
  bool Round() {
    bool worked = false;
    for (std::uint64_t rank = 0; rank < size(); ++rank) {
      if (silent_.contains(rank)) continue;
      Publisher& publisher = *ranks_[rank];
      worked = publisher.Tick() || worked;
      for (const Lane lane : kAllLanes) {
        auto job = publisher.Next(lane);
        if (!job.has_value()) continue;
        worked = true;
        publisher.Execute(*job);
        publisher.Finish(std::move(*job));
      }
      if (!has_board_) continue;
      for (const BoardMessage& message : std::exchange(publisher.outbox().outgoing, {})) {
        EXPECT_TRUE(board_.emplace(message.key, message.text).second) << message.key << " is put twice";
        worked = true;
      }
      for (const std::string& key : publisher.Wanted()) {
        const auto found = board_.find(key);
        if (found == board_.end()) continue;
        const bool garbled = garbled_.contains({rank, key});
        publisher.Deliver(key, garbled ? found->second.substr(1) : std::string(found->second));
        worked = true;
      }
      for (const std::string& key : std::exchange(publisher.outbox().unneeded, {})) board_.erase(key);
    }
    return worked;
  }
  void Work() {
    while (Round()) {
    }
    // A thread that is told of a time in the past would not wait at all.
    for (std::uint64_t rank = 0; rank < size(); ++rank) {
      if (silent_.contains(rank)) continue;
      for (const Lane lane : kAllLanes) {
        const auto due = ranks_[rank]->Due(lane);
        EXPECT_TRUE(!due.has_value() || *due > world_.clock.Monotonic()) << "rank " << rank << " has nothing to do";
      }
    }
  }
  // As time goes by, too.
  void WorkUntilIdle() {
    for (int i = 0; i < 10000; ++i) {
      Work();
      bool idle = true;
      for (std::uint64_t rank = 0; rank < size(); ++rank)
        idle = idle && (silent_.contains(rank) || (*this)[rank].idle());
      if (idle) return;
      world_.clock.Advance(std::chrono::seconds(1));
    }
    ADD_FAILURE() << "the ranks do not come to an end";
  }

 private:
  World& world_;
  SimFileSystem files_;
  bool has_board_ = false;
  std::map<std::string, std::string> board_;
  std::set<std::uint64_t> silent_;
  std::set<std::pair<std::uint64_t, std::string>> garbled_;
  std::vector<std::unique_ptr<SimStore>> stores_;
  std::vector<std::unique_ptr<Publisher>> ranks_;
};

// As a follower sees it.
inline Model ReadVersion(World& world, Version version) {
  const Run run = weightwire::Run::Open(world.bucket).value();
  MemoryTarget target(BestKernels(), OneThread());
  const Status rebuilt =
      Rebuild(run, version, target, NewId(world.random), {}, {&world.clock, &BestKernels(), &OneThread()});
  EXPECT_TRUE(rebuilt.ok()) << rebuilt.error().message();
  Model model;
  if (!rebuilt.ok()) return model;
  model.layout = std::make_shared<const Layout>(target.layout());
  for (std::size_t i = 0; i < model.layout->size(); ++i) {
    model.tensors.emplace_back(target.bytes(i).begin(), target.bytes(i).end());
  }
  return model;
}

inline void ExpectVersion(World& world, Version version, const Model& model) {
  const Model read = ReadVersion(world, version);
  ASSERT_NE(read.layout, nullptr);
  EXPECT_EQ(*read.layout, *model.layout);
  EXPECT_EQ(read.tensors, model.tensors) << "version " << version;
}

inline std::optional<KnownRecord> Newest(World& world) {
  return weightwire::Run::Open(world.bucket).value().FindNewest(std::nullopt).value();
}

inline std::vector<AnchorName> Anchors(World& world) {
  return weightwire::Run::Open(world.bucket).value().ListAnchors(0).value();
}

inline void RemoveDeltas(World& world) {
  const auto list = world.bucket.List("deltas/", "", 1000);
  for (const ObjectInfo& object : list.value()) ASSERT_TRUE(world.bucket.Remove(object.key).ok());
}

inline void ExpectStage(const std::vector<Ticket>& tickets, TicketStage stage) {
  for (const Ticket& ticket : tickets) {
    EXPECT_EQ(NameOf(ticket->stage), NameOf(stage)) << (ticket->error.has_value() ? ticket->error->message() : "");
  }
}

// Everything in the bucket is whole, and every anchor is its version.
inline void ExpectVerified(World& world) {
  Verifier verifier(weightwire::Run::Open(world.bucket).value(), 0, BestKernels(), OneThread());
  for (bool done = false; !done;) {
    const auto step = verifier.Step();
    ASSERT_TRUE(step.ok()) << step.error().message();
    done = step.value();
  }
  for (const std::string& damage : verifier.report().damage) ADD_FAILURE() << damage;
}

inline PublisherOptions Hurried() {
  PublisherOptions options;
  options.group.emplace().deadline = std::chrono::seconds(10);
  return options;
}

}  // namespace weightwire::testing
