#include "publish/publisher.h"

#include <gtest/gtest.h>

#include "publish/world.h"
#include "store/wrappers/forwarding_store.h"

namespace weightwire::testing {
namespace {

using Fate = SimStore::Fate;

// Both ways to keep what is on its way: in memory, and in a state directory.
class PublisherTest : public ::testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] static PublisherOptions Options() { return GetParam() ? WithStateDirectory() : PublisherOptions{}; }
};
INSTANTIATE_TEST_SUITE_P(Keeps, PublisherTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "state_directory" : "memory"; });

TEST_P(PublisherTest, PublishesTheExactStatesInOrder) {
  World world;
  Process process(world, Options());
  ASSERT_TRUE(process.Open().ok());
  std::vector<Model> models = {SmallModel(1)};
  std::vector<Ticket> tickets = {process.MustPublish(models[0], 100)};
  for (std::uint64_t i = 1; i < 8; ++i) {
    models.push_back(Trained(models.back(), i));
    tickets.push_back(process.MustPublish(models.back(), 100 + i));
    if (i % 3 == 0) process.WorkUntilIdle();
  }
  process.WorkUntilIdle();
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), models.size());
  for (std::size_t i = 0; i < models.size(); ++i) {
    EXPECT_EQ(versions[i].model, models[i]);
    EXPECT_EQ(versions[i].known.record.step, 100 + i);
    EXPECT_EQ(tickets[i]->stage, TicketStage::kCommitted);
    EXPECT_EQ(tickets[i]->version, i);
    EXPECT_EQ(tickets[i]->delta_bytes.value_or(0), versions[i].known.record.OwnDeltaBytes());
    EXPECT_EQ(tickets[i]->delta_bytes.has_value(), i > 0);
    EXPECT_EQ(tickets[i]->anchor_bytes.has_value(), i == 0);
    EXPECT_EQ(tickets[i]->changed, versions[i].known.record.changed);
  }
  EXPECT_EQ(versions[0].known.record.changed, kSmallModelUnits);
}

TEST_P(PublisherTest, TheNewestStateAndStepAgainIsAlreadyPublished) {
  World world;
  Process process(world, Options());
  ASSERT_TRUE(process.Open().ok());
  const Model model = SmallModel(1);
  process.MustPublish(model, 5);
  // Whether it is still on its way or committed.
  EXPECT_EQ(process.MustPublish(model, 5)->stage, TicketStage::kAlreadyPublished);
  process.WorkUntilIdle();
  const Ticket again = process.MustPublish(model, 5);
  EXPECT_EQ(again->stage, TicketStage::kAlreadyPublished);
  EXPECT_EQ(again->version, 0u);
  EXPECT_EQ(VersionsIn(world.bucket), 1u);
}

TEST_P(PublisherTest, TheSameStateWithAnotherStepIsAVersionWithoutParts) {
  World world;
  Process process(world, Options());
  ASSERT_TRUE(process.Open().ok());
  const Model model = SmallModel(1);
  process.MustPublish(model, 5);
  process.MustPublish(model, 6);
  // Steps may go back.
  process.MustPublish(Trained(model, 1), 2);
  process.WorkUntilIdle();
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), 3u);
  EXPECT_TRUE(versions[1].known.record.delta->empty());
  EXPECT_EQ(versions[1].known.record.changed, 0u);
  EXPECT_EQ(versions[1].model, model);
  EXPECT_EQ(versions[2].model, Trained(model, 1));
  EXPECT_EQ(versions[2].known.record.step, 2u);
}

TEST_P(PublisherTest, TheLayoutMayChangeBetweenVersions) {
  World world;
  Process process(world, Options());
  ASSERT_TRUE(process.Open().ok());
  const Model first = SmallModel(1);
  const Model second = WithOtherLayout(Trained(first, 1));
  process.MustPublish(first, 0);
  process.MustPublish(second, 1);
  process.MustPublish(first, 2);
  process.MustPublish(Trained(first, 2), 3);
  process.WorkUntilIdle();
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), 4u);
  EXPECT_EQ(versions[1].model, second);
  EXPECT_EQ(versions[2].model, first);
  EXPECT_EQ(versions[3].model, Trained(first, 2));
}

TEST_P(PublisherTest, AStateThatDoesNotFitItsLayoutIsRefused) {
  World world;
  Process process(world, Options());
  ASSERT_TRUE(process.Open().ok());
  const Model model = SmallModel(1);
  StateBits bits = BitsOf(model);
  bits.tensors[0] = bits.tensors[0].first(3);
  for (int i = 0; i < 2; ++i) {
    // As the first version, and as a later one.
    const auto refused = process->Publish(bits, 7);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    process.MustPublish(i == 0 ? model : Trained(model, 1), static_cast<std::uint64_t>(i));
    process.WorkUntilIdle();
  }
  EXPECT_EQ(ReadWholeRun(world.bucket).at(1).model, Trained(model, 1));
}

TEST_P(PublisherTest, ARestartGoesOnWithTheChain) {
  World world;
  Model model = SmallModel(1);
  for (std::uint64_t i = 0; i < 4; ++i) {
    Process process(world, Options());
    ASSERT_TRUE(process.Open().ok());
    process.MustPublish(model, i);
    process.WorkUntilIdle();
    EXPECT_EQ(process.MustPublish(model, i)->stage, TicketStage::kAlreadyPublished);
    model = Trained(model, i);
  }
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), 4u);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_TRUE(versions[i].known.record.delta.has_value()) << i;
}

TEST_P(PublisherTest, ACommittedVersionCostsTwoRequestsAndLittleMoreThanItsDelta) {
  World world;
  PublisherOptions options = Options();
  options.anchor_percent = 0;
  Process process(world, options);
  ASSERT_TRUE(process.Open().ok());
  Model model = SmallModel(1);
  process.MustPublish(model, 0);
  process.WorkUntilIdle();
  const std::uint64_t requests = process.store().requests();
  const std::uint64_t bytes = process.store().bytes_written();
  std::uint64_t parts = 0;
  constexpr std::uint64_t kVersions = 20;
  for (std::uint64_t i = 1; i <= kVersions; ++i) {
    model = Trained(model, i);
    const Ticket ticket = process.MustPublish(model, i);
    process.WorkUntilIdle();
    parts += ticket->delta_bytes.value_or(0);
  }
  EXPECT_EQ(VersionsIn(world.bucket), 1 + kVersions);
  EXPECT_EQ(process.store().requests() - requests, 2 * kVersions);
  EXPECT_LE(process.store().bytes_written() - bytes, parts + kVersions * (4096 + 200));
}

TEST_P(PublisherTest, AFullSpoolSkipsOrWaits) {
  for (const bool skip : {false, true}) {
    World world;
    PublisherOptions options = Options();
    options.max_versions = 2;
    options.skip_when_full = skip;
    if (GetParam()) options.state_directory = skip ? "/one" : "/two";
    Process process(world, options);
    ASSERT_TRUE(process.Open().ok());
    const Model first = SmallModel(1);
    const Model second = Trained(first, 1);
    const Model third = Trained(second, 2);
    const Model fourth = Trained(third, 3);
    process.MustPublish(first, 0);
    process.MustPublish(second, 1);
    const auto refused = process->Publish(BitsOf(third), 2);
    ASSERT_TRUE(refused.ok());
    ASSERT_EQ(refused.value().has_value(), skip);
    if (skip) {
      EXPECT_EQ((*refused.value())->stage, TicketStage::kSkipped);
    }
    process.WorkUntilIdle();
    // Neither compared nor advanced: the next delta covers both steps.
    process.MustPublish(fourth, 3);
    process.WorkUntilIdle();
    const auto versions = ReadWholeRun(world.bucket);
    ASSERT_EQ(versions.size(), 3u);
    EXPECT_EQ(versions[2].model, fourth);
  }
}

TEST_P(PublisherTest, TheSpoolIsFullByBytesToo) {
  World world;
  PublisherOptions options = Options();
  options.max_bytes = 1;
  Process process(world, options);
  ASSERT_TRUE(process.Open().ok());
  process.MustPublish(SmallModel(1), 0);
  process.MustPublish(SmallModel(2), 1);
  EXPECT_FALSE(process->Publish(BitsOf(SmallModel(3)), 2).value().has_value());
  process.WorkUntilIdle();
  process.MustPublish(SmallModel(3), 2);
}

TEST_P(PublisherTest, AnchorsComeByPolicyWithoutDelayingDeltas) {
  World world;
  PublisherOptions options = Options();
  options.anchor_every = 3;
  options.anchor_files.max_shard_bytes = 300;
  Process process(world, options);
  ASSERT_TRUE(process.Open().ok());
  std::vector<Model> models = {SmallModel(1)};
  process.MustPublish(models[0], 0);
  process.WorkUntilIdle();
  for (std::uint64_t i = 1; i <= 12; ++i) {
    Model next = Trained(models.back(), i);
    // An anchor is also read across a change of the layout.
    if (i == 5) next = WithOtherLayout(next);
    models.push_back(std::move(next));
    process.MustPublish(models.back(), i);
    // The deltas go up at once; of an anchor only one step is done between two versions.
    process.WorkIn(Lane::kDecide);
    process.WorkIn(Lane::kCommit);
    if (auto job = process->Next(Lane::kAnchor); job.has_value()) {
      process->Execute(*job);
      process->Finish(std::move(*job));
    }
    EXPECT_EQ(VersionsIn(world.bucket), i + 1);
  }
  process.WorkUntilIdle();
  const auto run = Run::Open(world.bucket);
  const auto anchors = run.value().ListAnchors(0);
  ASSERT_TRUE(anchors.ok());
  ASSERT_EQ(anchors.value().size(), 3u);
  EXPECT_EQ(anchors.value()[1].version, 3u);
  for (const AnchorName& name : anchors.value()) {
    // Of the version it names, though the base was further when it was read.
    EXPECT_EQ(ReadAnchorBits(run.value(), run.value().ReadAnchor(name).value().manifest), models[name.version]);
  }
  // Records name the newest that is known.
  EXPECT_EQ(ReadWholeRun(world.bucket).back().known.record.anchor->name.version, 3u);
  process.MustPublish(models[0], 99);
  process.WorkUntilIdle();
  EXPECT_EQ(ReadWholeRun(world.bucket).back().known.record.anchor->name, anchors.value()[2]);
}

// --- a network that fails ---

TEST_P(PublisherTest, ANetworkThatIsGoneLosesNothing) {
  World world;
  bool gone = false;
  Process process(world, Options(), std::nullopt,
                  [&](std::string_view, std::string_view) { return gone ? Fate::kUnavailable : Fate::kGoOn; });
  ASSERT_TRUE(process.Open().ok());
  std::vector<Model> models = {SmallModel(1)};
  process.MustPublish(models[0], 0);
  process.WorkUntilIdle();
  gone = true;
  std::vector<Ticket> tickets;
  for (std::uint64_t i = 1; i < 6; ++i) {
    models.push_back(Trained(models.back(), i));
    tickets.push_back(process.MustPublish(models.back(), i));
    process.WorkAll();
    world.clock.Advance(std::chrono::minutes(3));
  }
  EXPECT_EQ(tickets[0]->stage, TicketStage::kUploading);
  ASSERT_TRUE(tickets[0]->error.has_value());
  EXPECT_EQ(process->status().pending_versions, 5u);
  EXPECT_TRUE(process->status().last_error.has_value());
  gone = false;
  process.WorkUntilIdle();
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), models.size());
  for (std::size_t i = 0; i < models.size(); ++i) EXPECT_EQ(versions[i].model, models[i]);
  for (const Ticket& ticket : tickets) {
    EXPECT_EQ(ticket->stage, TicketStage::kCommitted);
    EXPECT_FALSE(ticket->error.has_value());
  }
}

TEST_P(PublisherTest, PausesGrowAndEndAtTheLast) {
  World world;
  std::uint64_t attempts = 0;
  bool gone = false;
  Process process(world, Options(), std::nullopt, [&](std::string_view, std::string_view) {
    attempts += gone ? 1 : 0;
    return gone ? Fate::kUnavailable : Fate::kGoOn;
  });
  ASSERT_TRUE(process.Open().ok());
  process.MustPublish(SmallModel(1), 0);
  process.WorkUntilIdle();
  gone = true;
  process.MustPublish(SmallModel(2), 1);
  process.WorkAll();
  EXPECT_EQ(attempts, 1u);
  std::uint64_t seen = 1;
  for (const int pause : {1, 2, 4, 8, 16, 32, 60, 60, 60}) {
    EXPECT_EQ(process->Due(Lane::kCommit), world.clock.Monotonic() + std::chrono::seconds(pause));
    world.clock.Advance(std::chrono::seconds(pause) - std::chrono::nanoseconds(1));
    EXPECT_FALSE(process->Work());
    world.clock.Advance(std::chrono::nanoseconds(1));
    EXPECT_TRUE(process->Work());
    EXPECT_EQ(attempts, ++seen);
  }
}

// A request, counted from the start, fails once in each way; everything is published all the same.
void FailEveryRequestInEveryWay(bool single_writer, const PublisherOptions& all_options) {
  for (const Fate fate : {Fate::kUnavailable, Fate::kLostBefore, Fate::kLostAfter, Fate::kRefused}) {
    for (std::uint64_t failing = 0;; ++failing) {
      World world(single_writer);
      PublisherOptions options = all_options;
      options.anchor_every = 2;
      std::uint64_t requests = 0;
      bool armed = false;
      Process process(world, options, std::nullopt, [&](std::string_view, std::string_view) {
        return armed && requests++ == failing ? fate : Fate::kGoOn;
      });
      ASSERT_TRUE(process.Open().ok());
      armed = true;
      std::vector<Model> models = {SmallModel(1)};
      std::vector<Ticket> tickets = {process.MustPublish(models[0], 0)};
      for (std::uint64_t i = 1; i < 4; ++i) {
        models.push_back(Trained(models.back(), i));
        tickets.push_back(process.MustPublish(models.back(), i));
        world.clock.Advance(std::chrono::seconds(1));
        process.WorkAll();
      }
      process.WorkUntilIdle();
      const auto versions = ReadWholeRun(world.bucket);
      ASSERT_EQ(versions.size(), models.size()) << "request " << failing;
      for (std::size_t i = 0; i < models.size(); ++i) {
        EXPECT_EQ(versions[i].model, models[i]);
        EXPECT_EQ(tickets[i]->stage, TicketStage::kCommitted);
      }
      if (requests <= failing) break;
    }
  }
}

TEST_P(PublisherTest, EveryRequestMayFailInEveryWay) { FailEveryRequestInEveryWay(false, Options()); }

// There a record is put, not created: a repetition must not replace what another has put.
TEST_P(PublisherTest, EveryRequestOfASingleWriterMayFailInEveryWay) { FailEveryRequestInEveryWay(true, Options()); }

// --- others ---

TEST_P(PublisherTest, OfTwoPublishersOneWinsAndTheOtherStops) {
  World world;
  const Model first = SmallModel(1);
  {
    Process process(world);
    ASSERT_TRUE(process.Open().ok());
    process.MustPublish(first, 0);
    process.WorkUntilIdle();
  }
  PublisherOptions options = Options();
  Process one(world, options);
  if (options.state_directory.has_value()) options.state_directory = "/other";
  Process two(world, options);
  ASSERT_TRUE(one.Open().ok());
  ASSERT_TRUE(two.Open().ok());
  const Model ones = Trained(first, 1);
  one.MustPublish(ones, 1);
  const Ticket lost = two.MustPublish(Trained(first, 2), 1);
  const Ticket after = two.MustPublish(Trained(first, 3), 2);
  one.WorkUntilIdle();
  two.WorkUntilIdle();
  EXPECT_EQ(lost->stage, TicketStage::kFailed);
  EXPECT_EQ(after->stage, TicketStage::kFailed);
  ASSERT_TRUE(lost->error.has_value());
  EXPECT_EQ(lost->error->code(), ErrorCode::kConflict);
  EXPECT_NE(lost->error->message().find("another writer"), std::string::npos) << lost->error->message();
  // What is in a spool would be in the way of the next start.
  EXPECT_EQ(lost->error->message().find("--discard-conflicting") != std::string::npos,
            options.state_directory.has_value());
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions[1].model, ones);
  EXPECT_NE(lost->error->message().find(ToHex(versions[1].known.record.writer)), std::string::npos);
  // For good.
  const auto later = two->Publish(BitsOf(first), 9);
  ASSERT_FALSE(later.ok());
  EXPECT_EQ(later.error().message(), lost->error->message());
  // The winner goes on.
  one.MustPublish(Trained(ones, 4), 2);
  one.WorkUntilIdle();
  EXPECT_EQ(VersionsIn(world.bucket), 3u);
}

// A store that creates what exists.
class Careless final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

 private:
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override {
    WW_RETURN_IF_ERROR(inner().Put(key, bytes));
    return PutOutcome::kCreated;
  }
};

TEST(Publisher, RefusesAStoreThatCreatesWhatExists) {
  World world;
  Careless careless(world.bucket);
  const auto publisher = Publisher::Open(Run::Open(careless).value(), {},
                                         {&world.clock, &world.random, nullptr, &BestKernels(), &OneThread()});
  ASSERT_FALSE(publisher.ok());
  EXPECT_EQ(publisher.error().code(), ErrorCode::kUnsupported);
  EXPECT_NE(publisher.error().message().find("--single-writer"), std::string::npos);
  // And leaves nothing behind.
  EXPECT_TRUE(world.bucket.List("probe/", "", 10).value().empty());
}

// --- losing the base ---

TEST(Publisher, RebasesWhenTheNewestVersionCannotBeRebuilt) {
  World world;
  {
    Process process(world);
    ASSERT_TRUE(process.Open().ok());
    process.MustPublish(SmallModel(1), 0);
    process.MustPublish(Trained(SmallModel(1), 1), 1);
    process.WorkUntilIdle();
  }
  // All weights are gone from the bucket.
  const auto objects = world.bucket.List("", "", 1000).value();
  for (const ObjectInfo& object : objects) {
    if (!object.key.ends_with(".safetensors")) continue;
    ASSERT_TRUE(world.bucket.Remove(object.key).ok());
  }
  Process process(world);
  ASSERT_TRUE(process.Open().ok());
  const Model model = SmallModel(7);
  process.MustPublish(model, 2);
  process.MustPublish(Trained(model, 8), 3);
  process.WorkUntilIdle();
  const auto run = Run::Open(world.bucket);
  const auto rebase = run.value().ReadRecord(2).value();
  ASSERT_TRUE(rebase.has_value());
  EXPECT_FALSE(rebase->record.delta.has_value());
  EXPECT_EQ(rebase->record.chain, 2u);
  const auto anchor = run.value().ReadAnchor(rebase->record.anchor->name);
  ASSERT_TRUE(anchor.ok());
  EXPECT_EQ(ReadAnchorBits(run.value(), anchor.value().manifest), model);
  const auto after = run.value().ReadRecord(3).value();
  ASSERT_TRUE(after.has_value());
  EXPECT_TRUE(after->record.delta.has_value());
  EXPECT_EQ(after->record.chain, 2u);
  EXPECT_FALSE(process->status().warnings.empty());
}

TEST(Publisher, DoesNotRebaseBecauseTheNetworkIsGone) {
  World world;
  {
    Process process(world);
    ASSERT_TRUE(process.Open().ok());
    process.MustPublish(SmallModel(1), 0);
    process.WorkUntilIdle();
  }
  Process process(world, {}, std::nullopt, [](std::string_view, std::string_view key) {
    return key.ends_with(".safetensors") ? Fate::kUnavailable : Fate::kGoOn;
  });
  const Status opened = process.Open();
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), ErrorCode::kUnavailable);
}

TEST(Publisher, ALostBaseIsNoMatterIfTheStateIsTheNewestVersion) {
  World world;
  const Model model = SmallModel(1);
  {
    Process process(world);
    ASSERT_TRUE(process.Open().ok());
    process.MustPublish(model, 0);
    process.WorkUntilIdle();
  }
  PublisherOptions options;
  options.rebuild = false;
  Process process(world, options);
  ASSERT_TRUE(process.Open().ok());
  EXPECT_EQ(process.MustPublish(model, 0)->stage, TicketStage::kAlreadyPublished);
  process.MustPublish(Trained(model, 1), 1);
  process.WorkUntilIdle();
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_TRUE(versions[1].known.record.delta.has_value());
}

TEST(Publisher, ABaseFileWithAWrongBitIsNotTrusted) {
  World world;
  const Model model = SmallModel(1);
  {
    Process process(world, WithStateDirectory());
    ASSERT_TRUE(process.Open().ok());
    process.MustPublish(model, 0);
    process.WorkUntilIdle();
  }
  {
    SimFileSystem files(world.disk);
    const auto map = files.MapForUpdate("/state/base.safetensors");
    ASSERT_TRUE(map.ok());
    map.value()->ForWriting(0, map.value()->size_bytes()).value().back() ^= 1;
  }
  Process process(world, WithStateDirectory());
  ASSERT_TRUE(process.Open().ok());
  const Model next = Trained(model, 1);
  process.MustPublish(next, 1);
  process.WorkUntilIdle();
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions[1].model, next);
  // It was rebuilt from the bucket, so there is a delta.
  EXPECT_TRUE(versions[1].known.record.delta.has_value());
}

TEST(Publisher, ABaseFileThatFitsSavesRebuilding) {
  World world;
  Model model = SmallModel(1);
  {
    Process process(world, WithStateDirectory());
    ASSERT_TRUE(process.Open().ok());
    process.MustPublish(model, 0);
    process.WorkUntilIdle();
    model = Trained(model, 1);
    process.MustPublish(model, 1);
    process.WorkUntilIdle();
  }
  Process process(world, WithStateDirectory(), std::nullopt, [](std::string_view, std::string_view key) {
    // No weights are read.
    return key.ends_with(".safetensors") ? Fate::kUnavailable : Fate::kGoOn;
  });
  ASSERT_TRUE(process.Open().ok());
  EXPECT_EQ(process.MustPublish(model, 1)->stage, TicketStage::kAlreadyPublished);
}

TEST(Publisher, AVersionThatCannotBeSpooledFailsAndTheNextCoversIt) {
  // The disk refuses each of the effects of spooling in turn.
  for (std::uint64_t failing = 0;; ++failing) {
    World world;
    std::uint64_t effects = 0;
    bool armed = false;
    bool refused = false;
    Process process(world, WithStateDirectory(failing % 2 == 0), std::nullopt, {},
                    [&](std::string_view, const FileSystem::Path& path) {
                      const bool spool = path.string().find("/spool") != std::string::npos;
                      if (!armed || !spool || effects++ != failing) return SimFileSystem::Fate::kGoOn;
                      refused = true;
                      return SimFileSystem::Fate::kRefuse;
                    });
    ASSERT_TRUE(process.Open().ok());
    const Model first = SmallModel(1);
    process.MustPublish(first, 0);
    process.WorkUntilIdle();
    armed = true;
    const Model second = Trained(first, 1);
    const Model third = WithOtherLayout(Trained(second, 2));
    const Model fourth = Trained(first, 3);
    const Ticket one = process.MustPublish(second, 1);
    const Ticket two = process.MustPublish(third, 2);
    process.WorkUntilIdle();
    Version published = 1;
    for (const Ticket& ticket : {one, two}) {
      ASSERT_TRUE(ticket->IsFinal());
      published += ticket->stage == TicketStage::kCommitted ? 1 : 0;
    }
    // Nothing is published over a version that is not.
    EXPECT_FALSE(one->stage == TicketStage::kFailed && two->stage == TicketStage::kCommitted);
    armed = false;
    process.MustPublish(fourth, 3);
    process.WorkUntilIdle();
    const auto versions = ReadWholeRun(world.bucket);
    ASSERT_EQ(versions.size(), published + 1);
    EXPECT_EQ(versions.back().model, fourth) << failing;
    EXPECT_TRUE(versions.back().known.record.delta.has_value()) << "from old bits, not from all: " << failing;
    if (!refused) break;
  }
}

TEST(Publisher, ABaseThatCannotBeRolledBackIsRebuilt) {
  World world;
  bool full = false;
  bool broken = false;
  Process process(world, WithStateDirectory(), std::nullopt, {}, [&](std::string_view effect, const FileSystem::Path&) {
    const bool refuse = (full && effect == "append") || (broken && effect == "write map");
    return refuse ? SimFileSystem::Fate::kRefuse : SimFileSystem::Fate::kGoOn;
  });
  ASSERT_TRUE(process.Open().ok());
  const Model first = SmallModel(1);
  process.MustPublish(first, 0);
  process.MustPublish(Trained(first, 1), 1);
  process.WorkUntilIdle();
  full = true;
  const Ticket failed = process.MustPublish(Trained(first, 2), 2);
  process.WorkUntilIdle();
  EXPECT_EQ(failed->stage, TicketStage::kFailed);
  full = false;
  broken = true;
  EXPECT_FALSE(process->Publish(BitsOf(Trained(first, 3)), 3).ok());
  broken = false;
  process.MustPublish(Trained(first, 3), 3);
  process.WorkUntilIdle();
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), 3u);
  EXPECT_EQ(versions[2].model, Trained(first, 3));
  EXPECT_TRUE(versions[2].known.record.delta.has_value());
}

TEST(Publisher, AVersionMadeWhileItsParentFailsFailsToo) {
  World world;
  bool full = false;
  Process process(world, WithStateDirectory(), std::nullopt, {}, [&](std::string_view effect, const FileSystem::Path&) {
    return full && effect == "append" ? SimFileSystem::Fate::kRefuse : SimFileSystem::Fate::kGoOn;
  });
  ASSERT_TRUE(process.Open().ok());
  const Model first = SmallModel(1);
  process.MustPublish(first, 0);
  process.WorkUntilIdle();
  full = true;
  const Ticket failed = process.MustPublish(Trained(first, 1), 1);
  const Admission admission = process->Admit();
  const Model late = Trained(first, 2);
  auto draft = process->Make(BitsOf(late), 2, admission);
  ASSERT_TRUE(draft.ok());
  process.WorkIn(Lane::kDecide);
  EXPECT_EQ(failed->stage, TicketStage::kFailed);
  const Ticket ticket = process->Enqueue(std::move(*draft.value()));
  EXPECT_EQ(ticket->stage, TicketStage::kFailed);
  full = false;
  process.MustPublish(Trained(first, 3), 3);
  process.WorkUntilIdle();
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions[1].model, Trained(first, 3));
}

TEST(Publisher, TheStateDirectoryIsForOneProcess) {
  World world;
  Process one(world, WithStateDirectory());
  ASSERT_TRUE(one.Open().ok());
  Process two(world, WithStateDirectory());
  const Status opened = two.Open();
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(opened.error().message().find("/state"), std::string::npos);
}

TEST(Publisher, ASpoolThatLostItsPlaceNeedsAPersonsWord) {
  World world;
  const Model first = SmallModel(1);
  {
    Process process(world, WithStateDirectory());
    ASSERT_TRUE(process.Open().ok());
    process.MustPublish(first, 0);
    process.WorkUntilIdle();
    process.MustPublish(Trained(first, 1), 1);
    process.MustPublish(Trained(first, 2), 2);
    process.WorkIn(Lane::kDecide);
    process.files().Kill();
  }
  {
    Process other(world);
    ASSERT_TRUE(other.Open().ok());
    other.MustPublish(Trained(first, 3), 1);
    other.WorkUntilIdle();
  }
  {
    Process process(world, WithStateDirectory());
    const Status opened = process.Open();
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code(), ErrorCode::kConflict);
    for (const char* const words : {"another writer", "versions 1 to 2", "/state", "--discard-conflicting"}) {
      EXPECT_NE(opened.error().message().find(words), std::string::npos) << opened.error().message();
    }
  }
  PublisherOptions options = WithStateDirectory();
  options.discard_conflicting = true;
  Process process(world, options);
  ASSERT_TRUE(process.Open().ok());
  process.MustPublish(Trained(first, 4), 2);
  process.WorkUntilIdle();
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), 3u);
  EXPECT_EQ(versions[2].model, Trained(first, 4));
}

TEST(Publisher, AStateDirectoryOfAnotherRunIsRefused) {
  World world;
  {
    Process process(world, WithStateDirectory());
    ASSERT_TRUE(process.Open().ok());
    process.MustPublish(SmallModel(1), 0);
    process.WorkUntilIdle();
    process.MustPublish(SmallModel(2), 1);
    process.WorkIn(Lane::kDecide);
    process.files().Kill();
  }
  MemoryStore another(&world.clock);
  ASSERT_TRUE(Run::Create(another, false, world.random).ok());
  SimFileSystem files(world.disk);
  const auto publisher = Publisher::Open(Run::Open(another).value(), WithStateDirectory(),
                                         {&world.clock, &world.random, &files, &BestKernels(), &OneThread()});
  ASSERT_FALSE(publisher.ok());
  EXPECT_NE(publisher.error().message().find("another run"), std::string::npos);
}

}  // namespace
}  // namespace weightwire::testing
