// What only several ranks have: a board, deadlines, and calls that fail on all of them.
#include <gtest/gtest.h>

#include "publish/group.h"

namespace weightwire::testing {
namespace {

TEST(Board, ARankThatMeansAnotherStep) {
  World world;
  Group group(world, 3);
  Model model = SmallModel(1);
  group.PublishFirst(model);
  const Model next = Trained(model, 1);
  std::vector<Ticket> tickets;
  for (std::uint64_t rank = 0; rank < 3; ++rank)
    tickets.push_back(group.Publish(rank, next, rank == 2 ? 5 : 1).value());
  group.WorkUntilIdle();
  ExpectStage(tickets, TicketStage::kFailed);
  for (const Ticket& ticket : tickets) {
    EXPECT_NE(ticket->error->message().find("rank 2 and rank 0 disagree about the step: 5 there, 1 here"),
              std::string::npos)
        << ticket->error->message();
  }
  EXPECT_EQ(Newest(world)->record.version, 0U);
  const Model after = Trained(next, 2);
  ExpectStage(
      [&] {
        auto all = group.PublishAll(after, 2);
        group.WorkUntilIdle();
        return all;
      }(),
      TicketStage::kCommitted);
  ExpectVersion(world, 1, after);
}

TEST(Board, RanksThatAreACallApartComeTogetherAgain) {
  World world;
  Group group(world, 2);
  Model model = SmallModel(1);
  group.PublishFirst(model);
  // Rank 1 has two calls on their way when it hears that the first has failed, rank 0 has one.
  std::vector<Ticket> lost = {group.Publish(1, Trained(model, 1), 1).value(),
                              group.Publish(1, Trained(model, 2), 2).value()};
  lost.push_back(group.Publish(0, Trained(model, 1), 99).value());
  group.Work();
  // From now on rank 0 is a call behind. Whoever has a call on its way is told to wait; so they meet.
  lost.push_back(group.Publish(0, Trained(model, 2), 2).value());
  EXPECT_TRUE(group[0].Admit().full);
  group.WorkUntilIdle();
  ExpectStage(lost, TicketStage::kFailed);
  const auto tickets = group.PublishAll(Trained(model, 3), 3);
  group.WorkUntilIdle();
  ExpectStage(tickets, TicketStage::kCommitted);
  ExpectVersion(world, 1, Trained(model, 3));
  EXPECT_FALSE(group[1].Admit().full);
}

TEST(Board, ACallThatMadeNothingSpoilsNothing) {
  World world;
  Group group(world, 2);
  const Model model = SmallModel(1);
  group.PublishFirst(model);
  const Ticket first = group.Publish(0, Trained(model, 1), 1).value();
  group[1].Refuse(1, {ErrorCode::kInvalidArgument, "the model is not there"});
  const Ticket next = group.Publish(1, Trained(model, 2), 2).value();  // before it hears of the verdict
  group.Work();
  EXPECT_EQ(first->error->message(), "nothing was published by call 1 of publish: rank 1: the model is not there");
  const Ticket other = group.Publish(0, Trained(model, 2), 2).value();
  group.WorkUntilIdle();
  ExpectStage({first}, TicketStage::kFailed);
  ExpectStage({next, other}, TicketStage::kCommitted);
  ExpectVersion(world, 1, Trained(model, 2));
}

TEST(Board, ARankWithAnotherLayout) {
  World world;
  Group group(world, 2);
  const Model model = SmallModel(1);
  group.PublishFirst(model);
  const Ticket first = group.Publish(0, Trained(model, 1), 1).value();
  const Ticket second = group.Publish(1, WithOtherLayout(model), 1).value();
  group.WorkUntilIdle();
  ExpectStage({first, second}, TicketStage::kFailed);
  EXPECT_NE(first->error->message().find("disagree about the names"), std::string::npos) << first->error->message();
  const auto tickets = group.PublishAll(Trained(model, 2), 2);
  group.WorkUntilIdle();
  ExpectStage(tickets, TicketStage::kCommitted);
  ExpectVersion(world, 1, Trained(model, 2));
}

TEST(Board, ShardsThatDoNotCoverTheState) {
  World world;
  Group group(world, 2);
  const Model model = SmallModel(1);
  std::vector<Ticket> tickets;
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    // Both think that they are rank 0.
    const Holding holding = Hold(model, 0, 2);
    auto draft = group[rank].Make(holding.Bits(), 0, group[rank].Admit());
    ASSERT_TRUE(draft.ok());
    tickets.push_back(group[rank].Enqueue(*std::move(draft).value()));
  }
  group.WorkUntilIdle();
  ExpectStage(tickets, TicketStage::kFailed);
  EXPECT_NE(tickets[1]->error->message().find("do not cover it exactly once"), std::string::npos)
      << tickets[1]->error->message();
  EXPECT_FALSE(Newest(world).has_value());
}

TEST(Board, ASilentRankIsWaitedForUpToTheDeadline) {
  World world;
  Group group(world, 3, Hurried());
  const Model model = SmallModel(1);
  group.PublishFirst(model);
  group.Silence(1);
  const Ticket first = group.Publish(0, Trained(model, 1), 1).value();
  const Ticket third = group.Publish(2, Trained(model, 1), 1).value();
  const auto begin = world.clock.Monotonic();
  group.WorkUntilIdle();
  ExpectStage({first, third}, TicketStage::kFailed);
  EXPECT_LE(*first->times[static_cast<std::size_t>(TicketStage::kFailed)] - begin, std::chrono::seconds(10));
  EXPECT_NE(third->error->message().find("nothing was heard of rank 1"), std::string::npos) << third->error->message();
  EXPECT_EQ(Newest(world)->record.version, 0U);
  // It was only slow: its call of then comes, and all go on together.
  group.Wake(1);
  const auto late = group.Publish(1, Trained(model, 1), 1);
  ASSERT_TRUE(late.ok());
  group.WorkUntilIdle();
  ExpectStage({late.value()}, TicketStage::kFailed);
  const auto tickets = group.PublishAll(Trained(model, 2), 2);
  group.WorkUntilIdle();
  ExpectStage(tickets, TicketStage::kCommitted);
  ExpectVersion(world, 1, Trained(model, 2));
}

TEST(Board, WithoutRank0TheOthersSaySo) {
  World world;
  Group group(world, 3, Hurried());
  const Model model = SmallModel(1);
  group.PublishFirst(model);
  group.Silence(0);
  const Ticket second = group.Publish(1, Trained(model, 1), 1).value();
  const Ticket third = group.Publish(2, Trained(model, 1), 1).value();
  for (int i = 0; i < 12; ++i) {
    group.Work();
    world.clock.Advance(std::chrono::seconds(1));
  }
  group.Work();
  ExpectStage({second, third}, TicketStage::kFailed);
  EXPECT_NE(second->error->message().find("rank 0 has not said within 10 s"), std::string::npos)
      << second->error->message();
  EXPECT_FALSE(group.Publish(1, Trained(model, 2), 2).ok());
  // Rank 0 was only slow. Its call makes the version, of which the others had their part.
  group.Wake(0);
  const Ticket first = group.Publish(0, Trained(model, 1), 1).value();
  group.WorkUntilIdle();
  ExpectStage({first}, TicketStage::kCommitted);
  ExpectVersion(world, 1, Trained(model, 1));
  // Call 2 was refused by rank 1; after it all go on.
  ASSERT_TRUE(group.Publish(0, Trained(model, 2), 2).ok());
  ASSERT_TRUE(group.Publish(2, Trained(model, 2), 2).ok());
  group.WorkUntilIdle();
  EXPECT_EQ(Newest(world)->record.version, 1U);
  const auto tickets = group.PublishAll(Trained(model, 3), 3);
  group.WorkUntilIdle();
  ExpectStage(tickets, TicketStage::kCommitted);
  ExpectVersion(world, 2, Trained(model, 3));
}

TEST(Board, OneRanksStoreFails) {
  World world;
  bool fails = false;
  const auto hook = [&](std::string_view request, std::string_view key) {
    return fails && request == "put" && key.starts_with("deltas/") ? SimStore::Fate::kUnavailable
                                                                   : SimStore::Fate::kGoOn;
  };
  Group group(world, 3, Hurried(), {{1, hook}});
  const Model model = SmallModel(1);
  group.PublishFirst(model);
  fails = true;
  const auto lost = group.PublishAll(Trained(model, 1), 1);
  const auto after = group.PublishAll(Trained(model, 2), 2);  // made from the one that will fail
  group.WorkUntilIdle();
  ExpectStage(lost, TicketStage::kFailed);
  ExpectStage(after, TicketStage::kFailed);
  EXPECT_NE(lost[2]->error->message().find("rank 1: cannot upload a part of version 1"), std::string::npos)
      << lost[2]->error->message();
  EXPECT_EQ(Newest(world)->record.version, 0U);
  fails = false;
  const auto tickets = group.PublishAll(Trained(model, 3), 3);
  group.WorkUntilIdle();
  ExpectStage(tickets, TicketStage::kCommitted);
  ExpectVersion(world, 1, Trained(model, 3));
}

TEST(Board, ALostAnswerToTheRecordIsAskedForAgain) {
  World world;
  int troubles = 0;
  const auto hook = [&](std::string_view request, std::string_view key) {
    if (key != RecordKey(1) || troubles == 8) return SimStore::Fate::kGoOn;
    ++troubles;
    return request == "put if absent" && troubles == 2 ? SimStore::Fate::kLostAfter : SimStore::Fate::kUnavailable;
  };
  Group group(world, 2, Hurried(), {{0, hook}});
  troubles = 8;
  const Model model = SmallModel(1);
  group.PublishFirst(model);
  troubles = 0;
  const auto tickets = group.PublishAll(Trained(model, 1), 1);
  const auto next = group.PublishAll(Trained(model, 2), 2);
  group.WorkUntilIdle();
  EXPECT_EQ(troubles, 8);
  // Whatever the tickets of those say who could not wait: the version is there, once, and all go on from it.
  ExpectVersion(world, 1, Trained(model, 1));
  const auto last = group.PublishAll(Trained(model, 3), 3);
  group.WorkUntilIdle();
  ExpectStage(last, TicketStage::kCommitted);
  EXPECT_EQ(tickets[0]->version, 1U);
  ExpectVersion(world, Newest(world)->record.version, Trained(model, 3));
}

TEST(Board, ABaseThatCannotBeHadMakesARebase) {
  World world;
  const Model model = SmallModel(1);
  {
    Group group(world, 2);
    group.PublishAll(model, 0);
    group.PublishAll(Trained(model, 1), 1);
    group.WorkUntilIdle();
  }
  RemoveDeltas(world);
  Group group(world, 3);
  const auto lost = group.PublishAll(Trained(model, 2), 2);
  group.WorkUntilIdle();
  ExpectStage(lost, TicketStage::kFailed);
  const auto tickets = group.PublishAll(Trained(model, 3), 3);
  group.WorkUntilIdle();
  ExpectStage(tickets, TicketStage::kCommitted);
  EXPECT_FALSE(Newest(world)->record.delta.has_value());
  ExpectVersion(world, 2, Trained(model, 3));
  const auto next = group.PublishAll(Trained(model, 4), 4);
  group.WorkUntilIdle();
  ExpectStage(next, TicketStage::kCommitted);
  ExpectVersion(world, 3, Trained(model, 4));
}

// A rank dies before each of its effects on the bucket in turn. The others come to an end, and whoever starts again
// goes on from versions that are whole.
TEST(Board, ARankThatDiesAnywhere) {
  for (const std::uint64_t dying : {0, 1}) {
    bool survived = false;
    for (std::uint64_t die_at = 0; !survived; ++die_at) {
      SCOPED_TRACE(::testing::Message() << "rank " << dying << " dies before effect " << die_at);
      World world;
      std::vector<Model> models = {SmallModel(1)};
      for (Version v = 0; v < 3; ++v) models.push_back(Trained(models.back(), v));
      {
        PublisherOptions options = Hurried();
        options.anchor_every = 2;
        options.anchor_percent = 0;
        std::uint64_t effects = 0;
        bool started = false;
        bool dead = false;
        const auto hook = [&](std::string_view, std::string_view) {
          dead = dead || (started && effects++ == die_at);
          return dead ? SimStore::Fate::kDie : SimStore::Fate::kGoOn;
        };
        Group group(world, 2, options, {{dying, hook}});
        started = true;
        for (Version v = 0; v < 3 && !dead; ++v) {
          for (std::uint64_t rank = 0; rank < 2; ++rank) static_cast<void>(group.Publish(rank, models[v], v));
          for (int i = 0; i < 40; ++i) {
            while (group.Round()) {
              if (dead) group.Silence(dying);
            }
            if (dead) group.Silence(dying);
            world.clock.Advance(std::chrono::seconds(1));
          }
        }
        survived = !dead;
      }
      const auto newest = Newest(world);
      const Version next = newest.has_value() ? newest->record.version + 1 : 0;
      if (newest.has_value()) ExpectVersion(world, newest->record.version, models[newest->record.version]);
      Group group(world, 3);
      const auto tickets = group.PublishAll(models[3], 100);
      group.WorkUntilIdle();
      ExpectStage(tickets, TicketStage::kCommitted);
      ExpectVersion(world, next, models[3]);
      ExpectVerified(world);
      if (HasFailure()) return;
    }
  }
}

TEST(Board, AnAnchorThatOneRankCannotWriteIsGivenUp) {
  World world;
  bool fails = false;
  const auto hook = [&](std::string_view, std::string_view key) {
    return fails && key.find("/pieces/") != std::string_view::npos ? SimStore::Fate::kUnavailable
                                                                   : SimStore::Fate::kGoOn;
  };
  PublisherOptions options = Hurried();
  options.anchor_every = 2;
  options.anchor_percent = 0;
  Group group(world, 2, options, {{1, hook}});
  Model model = SmallModel(1);
  group.PublishFirst(model);
  fails = true;
  for (Version v = 1; v < 4; ++v) {
    model = Trained(model, v);
    const auto tickets = group.PublishAll(model, v);
    group.WorkUntilIdle();
    ExpectStage(tickets, TicketStage::kCommitted);
  }
  EXPECT_TRUE(group[0].status().anchor_error.has_value());
  EXPECT_EQ(Anchors(world).size(), 1U);
  // It is all of the model: it is not tried again with every version, but 16 versions after the one it was abandoned
  // at.
  fails = false;
  for (Version v = 4; v <= 18; ++v) {
    EXPECT_EQ(Anchors(world).size(), 1U) << v;
    model = Trained(model, v);
    group.PublishAll(model, v);
    group.WorkUntilIdle();
  }
  EXPECT_EQ(Anchors(world).size(), 2U);
  EXPECT_FALSE(group[0].status().anchor_error.has_value());
  ExpectVerified(world);
}

TEST(Board, AnAnchorThatCannotBeCompletedIsGivenUpBeforeGcTakesItsPieces) {
  World world;
  bool refused = false;
  const auto hook = [&](std::string_view, std::string_view key) {
    return refused && key.ends_with("anchor.json") ? SimStore::Fate::kRefused : SimStore::Fate::kGoOn;
  };
  PublisherOptions options = Hurried();
  options.anchor_every = 1;
  Group group(world, 2, options, {{0, hook}});
  const Model model = SmallModel(1);
  group.PublishFirst(model);
  refused = true;
  const auto tickets = group.PublishAll(Trained(model, 1), 1);
  group.Work();
  EXPECT_TRUE(group[0].status().anchor_in_progress.has_value());
  world.clock.Advance(std::chrono::hours(13));
  group.WorkUntilIdle();
  ExpectStage(tickets, TicketStage::kCommitted);
  EXPECT_TRUE(group[0].status().anchor_error.has_value());
  EXPECT_FALSE(group[0].status().anchor_in_progress.has_value());
}

TEST(Board, RanksMustSeeTheSameRun) {
  World here;
  World there;
  Group group(here, 2);
  // A directory of the same name on another machine, say. Neither has a version yet.
  SimFileSystem files(there.disk, {});
  PublisherOptions options;
  options.group.emplace().rank = 1;
  options.group->ranks = 2;
  SeededRandom random(77);
  MemoryStore other(&there.clock);
  const auto run = weightwire::Run::Create(other, false, random).value();
  const auto opened =
      Publisher::Open(run, options, {&there.clock, &random, &files, &BestKernels(), &OneThread()}, group[0].start());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), ErrorCode::kMismatch);
  EXPECT_NE(opened.error().message().find("all ranks must see the same bucket"), std::string::npos);
}

TEST(Board, ACallThatWasMadeWhileTouchWasLostIsNotWaitedForForEver) {
  World world;
  Group group(world, 2, Hurried());
  const Model model = SmallModel(1);
  group.PublishFirst(model);
  const auto made = [&](const Model& next, std::uint64_t step) {
    return *group[1].Make(Hold(next, 1, 2).Bits(), step, group[1].Admit()).value();
  };
  Draft draft = made(Trained(model, 1), 1);
  group[1].SetDisconnected({ErrorCode::kUnavailable, "the line is cut"});
  const Ticket ticket = group[1].Enqueue(std::move(draft));
  EXPECT_EQ(NameOf(ticket->stage), "failed");
  EXPECT_EQ(ticket->error->code(), ErrorCode::kUnknownOutcome);
  EXPECT_EQ(ticket->error->message(), "the line is cut: call 1 of publish may be committed or not");
  // It counts all the same: with touch, it is committed.
  group[1].SetConnected();
  const Ticket first = group.Publish(0, Trained(model, 1), 1).value();
  group.WorkUntilIdle();
  EXPECT_EQ(NameOf(first->stage), "committed");
  EXPECT_EQ(NameOf(ticket->stage), "failed");
  EXPECT_TRUE(ticket->error.has_value());
  ExpectVersion(world, 1, Trained(model, 1));
}

TEST(Board, ACallThatWasMadeWhileAnotherWriterWonFailsForThat) {
  World world;
  Group group(world, 2);
  const Model model = SmallModel(1);
  group.PublishFirst(model);
  Process other(world);
  ASSERT_TRUE(other.Open().ok());
  other.MustPublish(Trained(model, 9), 9);
  other.WorkUntilIdle();
  group.PublishAll(Trained(model, 1), 1);
  Draft draft = *group[1].Make(Hold(Trained(model, 2), 1, 2).Bits(), 2, group[1].Admit()).value();
  group.WorkUntilIdle();
  const Ticket ticket = group[1].Enqueue(std::move(draft));
  EXPECT_EQ(NameOf(ticket->stage), "failed");
  EXPECT_EQ(ticket->error->code(), ErrorCode::kConflict);
  EXPECT_TRUE(group[1].idle());
}

TEST(Board, ALostAnswerBeforeTheRecordWasSentIsNoCommit) {
  World world;
  std::string trouble;
  const auto hook = [&](std::string_view request, std::string_view key) {
    if (request != "put" && request != "put if absent") return SimStore::Fate::kGoOn;
    if (!key.starts_with("layouts/")) return SimStore::Fate::kGoOn;
    if (!trouble.empty()) return SimStore::Fate::kRefused;
    trouble = "lost";
    return SimStore::Fate::kLostBefore;
  };
  Group group(world, 2, Hurried(), {{0, hook}});
  const auto tickets = group.PublishAll(SmallModel(1), 0);
  group.WorkUntilIdle();
  EXPECT_EQ(trouble, "lost");
  ExpectStage(tickets, TicketStage::kFailed);
  for (const Ticket& ticket : tickets) {
    EXPECT_NE(ticket->error->message().find("nothing was published by call 0"), std::string::npos)
        << ticket->error->message();
  }
}

TEST(Board, AStoreThatIsAwayForAlmostTheDeadlineSpoilsNothing) {
  World world;
  bool away = false;
  const auto hook = [&](std::string_view request, std::string_view key) {
    return away && request == "put if absent" && key == RecordKey(1) ? SimStore::Fate::kUnavailable
                                                                     : SimStore::Fate::kGoOn;
  };
  Group group(world, 2, Hurried(), {{0, hook}});
  const Model model = SmallModel(1);
  group.PublishFirst(model);
  away = true;
  // Rank 1 has waited for rank 0 for most of the deadline already.
  const Ticket second = group.Publish(1, Trained(model, 1), 1).value();
  group.Work();
  world.clock.Advance(std::chrono::seconds(7));
  const Ticket first = group.Publish(0, Trained(model, 1), 1).value();
  for (int i = 0; i < 6; ++i) {
    group.Work();
    world.clock.Advance(std::chrono::seconds(1));
  }
  away = false;
  group.WorkUntilIdle();
  ExpectStage({first, second}, TicketStage::kCommitted);
}

// As of a rank with another version of this program.
TEST(Board, AReportThatIsNotUnderstoodFailsOnAllRanks) {
  World world;
  Group group(world, 2);
  Model model = SmallModel(1);
  group.PublishFirst(model);
  group.Garble(0, ReportKey(1, 1));
  const std::vector<Ticket> failed = group.PublishAll(Trained(model, 1), 1);
  group.WorkUntilIdle();
  for (const Ticket& ticket : failed) {
    EXPECT_EQ(ticket->stage, TicketStage::kFailed);
    EXPECT_NE(ticket->error->message().find("the report of rank 1"), std::string::npos) << ticket->error->message();
  }
  model = Trained(model, 2);
  ExpectStage(group.PublishAll(model, 2), TicketStage::kQueued);
  group.WorkUntilIdle();
  ExpectVersion(world, 1, model);
}

TEST(Board, AVerdictThatIsNotUnderstoodStopsTheRank) {
  World world;
  Group group(world, 2);
  const Model model = SmallModel(1);
  group.PublishFirst(model);
  group.Garble(1, VerdictKey(1));
  const Model next = Trained(model, 1);
  const std::vector<Ticket> tickets = group.PublishAll(next, 1);
  group.WorkUntilIdle();
  EXPECT_EQ(tickets[0]->stage, TicketStage::kCommitted);
  EXPECT_EQ(tickets[1]->stage, TicketStage::kFailed);
  EXPECT_TRUE(group[1].Admit().stopped.has_value());
  ExpectVersion(world, 1, next);
}

TEST(Board, DetectsDeadRankWhileOthersSendHeartbeats) {
  World world;
  PublisherOptions options;
  options.group = GroupOptions{.rank = 0, .ranks = 3, .deadline = std::chrono::seconds(10)};
  const weightwire::Run run = weightwire::Run::Open(world.bucket).value();
  Committer committer(run, options, {}, world.random, nullptr, {}, {});
  BoardOutbox outbox;
  BoardHost host(run, options, {}, committer, outbox);
  // Rank 2 goes on and on with its piece; of rank 1 nothing comes.
  int signs = 0;
  std::string verdict;
  for (; signs < 20 && verdict.empty(); ++signs) {
    host.Deliver(AliveKey("0", 2, static_cast<std::uint64_t>(signs)), "1", world.clock.Monotonic());
    host.Deliver(AliveKey("0", 0, static_cast<std::uint64_t>(signs)), "1", world.clock.Monotonic());
    world.clock.Advance(std::chrono::seconds(1));
    host.Tick(world.clock.Monotonic());
    host.PublishVerdicts(world.clock.Monotonic());
    for (const BoardMessage& message : std::exchange(outbox.outgoing, {})) {
      if (message.key == VerdictKey(0)) verdict = message.text;
    }
  }
  EXPECT_LE(signs, 10);
  EXPECT_NE(verdict.find("nothing was heard of rank 1 for 8 s"), std::string::npos) << verdict;
}

TEST(Board, APartThatTakesLongIsWaitedFor) {
  World world;
  Group* ranks = nullptr;
  bool slow = false;
  const auto hook = [&](std::string_view request, std::string_view key) {
    if (slow && request == "put" && key.starts_with("deltas/")) {
      slow = false;
      // The other lanes and the other ranks go on meanwhile, for three deadlines.
      for (int i = 0; i < 30; ++i) {
        world.clock.Advance(std::chrono::seconds(1));
        ranks->Work();
      }
    }
    return SimStore::Fate::kGoOn;
  };
  PublisherOptions options = Hurried();
  options.group->slowest_bytes_per_second = 10;
  Group group(world, 2, options, {{1, hook}});
  ranks = &group;
  const Model model = SmallModel(1);
  group.PublishFirst(model);
  slow = true;
  const auto tickets = group.PublishAll(Trained(model, 1), 1);
  EXPECT_GT(tickets[1]->delta_bytes.value_or(0), 300U);
  group.WorkUntilIdle();
  ExpectStage(tickets, TicketStage::kCommitted);
  ExpectVersion(world, 1, Trained(model, 1));
  for (const auto& [key, text] : group.board()) EXPECT_TRUE(key.starts_with("ended/")) << key;
}

}  // namespace
}  // namespace weightwire::testing
