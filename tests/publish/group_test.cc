// Publishing by one process and by several ranks: whatever makes sense for both.
#include "publish/group.h"

#include <gtest/gtest.h>

#include "publish/anchor_policy.h"

namespace weightwire::testing {
namespace {

class GroupTest : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GroupTest, ::testing::Values(kOneProcess, 1, 2, 3, 4, 7));

TEST_P(GroupTest, VersionsAreExact) {
  World world;
  Group group(world, GetParam());
  Model model = SmallModel(1);
  for (Version v = 0; v < 4; ++v) {
    const auto tickets = group.PublishAll(model, v);
    group.WorkUntilIdle();
    ExpectStage(tickets, TicketStage::kCommitted);
    EXPECT_EQ(tickets[0]->version, v);
    EXPECT_EQ(tickets[0]->changed, Newest(world)->record.changed) << "of all ranks";
    EXPECT_EQ(tickets[0]->delta_bytes.value_or(0), Newest(world)->record.OwnDeltaBytes());
    EXPECT_EQ(tickets[0]->delta_bytes.has_value(), v > 0);
    EXPECT_EQ(tickets[0]->anchor_bytes.has_value(), v == 0);
    ExpectVersion(world, v, model);
    model = Trained(model, v);
  }
  ExpectVerified(world);
  for (const auto& [key, text] : group.board()) {
    EXPECT_TRUE(key.starts_with("ended/")) << key << " is left on the board";
  }
  EXPECT_LE(group.board().size(), 2U);
  const std::vector<std::string> pieces = {"pieces"};
  EXPECT_EQ(Newest(world)->record.read, GetParam() == kOneProcess ? std::vector<std::string>() : pieces);
}

TEST_P(GroupTest, CallsDoNotWaitForEachOther) {
  World world;
  Group group(world, GetParam());
  std::vector<Model> models = {SmallModel(1)};
  for (Version v = 0; v < 5; ++v) {
    EXPECT_EQ(group.PublishAll(models.back(), v)[0]->version, v) << "told at once";
    group.Round();
    models.push_back(Trained(models.back(), v));
  }
  group.WorkUntilIdle();
  for (Version v = 0; v < 5; ++v) ExpectVersion(world, v, models[v]);
}

TEST_P(GroupTest, GoesOnWithAnotherNumberOfRanks) {
  World world;
  Model model = SmallModel(1);
  Version v = 0;
  for (const std::uint64_t ranks : {GetParam(), std::uint64_t{4}, std::uint64_t{1}, GetParam()}) {
    Group group(world, ranks);
    for (int i = 0; i < 2; ++i, ++v) {
      model = Trained(model, v);
      const auto tickets = group.PublishAll(model, v);
      group.WorkUntilIdle();
      ExpectStage(tickets, TicketStage::kCommitted);
      ExpectVersion(world, v, model);
    }
  }
  EXPECT_EQ(Newest(world)->record.chain, 0U) << "no restart made a rebase";
  // And with the publisher of a single process.
  Process process(world);
  ASSERT_TRUE(process.Open().ok());
  model = Trained(model, v);
  process.MustPublish(model, v);
  process.WorkUntilIdle();
  ExpectVersion(world, v, model);
  EXPECT_EQ(Newest(world)->record.chain, 0U);
}

TEST_P(GroupTest, TheSameStateIsNoNewVersionUnlessTheStepIs) {
  World world;
  Model model = SmallModel(1);
  {
    Group group(world, GetParam());
    group.PublishAll(model, 7);
    group.WorkUntilIdle();
  }
  Group group(world, GetParam());
  const auto again = group.PublishAll(model, 7);
  const auto next = group.PublishAll(Trained(model, 1), 8);  // made before the verdict on the other
  group.WorkUntilIdle();
  ExpectStage(again, TicketStage::kAlreadyPublished);
  EXPECT_EQ(again[0]->version, 0U);
  ExpectStage(next, TicketStage::kCommitted);
  EXPECT_EQ(next[0]->version, 1U);
  const auto other_step = group.PublishAll(Trained(model, 1), 9);
  group.WorkUntilIdle();
  ExpectStage(other_step, TicketStage::kCommitted);
  EXPECT_TRUE(Newest(world)->record.delta->empty());
  ExpectVersion(world, 2, Trained(model, 1));
}

TEST_P(GroupTest, AnchorsComeByPolicy) {
  World world;
  PublisherOptions options;
  options.anchor_every = 2;
  options.anchor_percent = 0;
  Group group(world, GetParam(), options);
  Model model = SmallModel(1);
  for (Version v = 0; v < 6; ++v) {
    group.PublishAll(model, v);
    group.WorkUntilIdle();
    model = Trained(model, v);
  }
  const auto names = Anchors(world);
  ASSERT_EQ(names.size(), 3U);
  EXPECT_EQ(names[1].version, 2U);
  EXPECT_EQ(names[2].version, 4U);
  ExpectVerified(world);
  // The deltas are gone: only the anchors lead there.
  RemoveDeltas(world);
  ExpectVersion(world, 4, Trained(Trained(Trained(Trained(SmallModel(1), 0), 1), 2), 3));
}

TEST_P(GroupTest, AnAnchorIsDueWhenTheDeltasAddUp) {
  World world;
  PublisherOptions options;
  options.anchor_every = 0;
  options.anchor_percent = 100;
  Group group(world, GetParam(), options);
  Model model = SmallModel(1);
  group.PublishFirst(model);
  std::uint64_t bytes = 0;
  Version v = 0;
  while (bytes <= model.layout->total_bytes()) {
    EXPECT_EQ(Anchors(world).size(), 1U);
    model = Trained(model, ++v, 2);
    const auto tickets = group.PublishAll(model, v);
    group.WorkUntilIdle();
    bytes += tickets[0]->delta_bytes.value_or(0);
  }
  const auto anchors = Anchors(world);
  ASSERT_EQ(anchors.size(), 2U);
  EXPECT_EQ(anchors[1].version, v);
}

// A reader of the old records refuses it; if it were named again, readers of the next ones would take it.
TEST_P(GroupTest, AnAnchorThatIsNotWhatItsRecordsSayIsNotNamedAgain) {
  World world;
  PublisherOptions options;
  options.anchor_percent = 0;
  Group group(world, GetParam(), options);
  group.PublishFirst(SmallModel(1));
  group.PublishAll(Trained(SmallModel(1), 1), 1);
  group.WorkUntilIdle();
  const auto run = weightwire::Run::Open(world.bucket).value();
  const Record newest = Newest(world)->record;
  ASSERT_TRUE(newest.anchor.has_value());
  const std::string key = AnchorFolder(newest.anchor->name) + "anchor.json";
  auto text = world.bucket.Get(key, kMaxPutBytes).value();
  text.insert(text.begin() + 1, ' ');
  ASSERT_TRUE(world.bucket.Put(key, text).ok());
  ASSERT_TRUE(run.ReadAnchor(newest.anchor->name).ok());
  EXPECT_FALSE(FindNewestAnchor(run, newest).value().has_value());
}

// --- other writers ---

TEST_P(GroupTest, OfTwoOneWinsAndTheOtherStops) {
  World world;
  const Model first = SmallModel(1);
  Group(world, GetParam()).PublishFirst(first);
  Group one(world, GetParam());
  Group two(world, GetParam());
  const Model ones = Trained(first, 1);
  one.PublishAll(ones, 1);
  const auto lost = two.PublishAll(Trained(first, 2), 1);
  const auto after = two.PublishAll(Trained(first, 3), 2);
  one.WorkUntilIdle();
  two.WorkUntilIdle();
  ExpectStage(lost, TicketStage::kFailed);
  ExpectStage(after, TicketStage::kFailed);
  ASSERT_TRUE(lost[0]->error.has_value());
  const std::string& why = lost[0]->error->message();
  EXPECT_EQ(lost[0]->error->code(), ErrorCode::kConflict);
  EXPECT_NE(why.find("another writer"), std::string::npos) << why;
  EXPECT_NE(why.find(ToHex(Newest(world)->record.writer)), std::string::npos) << why;
  ExpectVersion(world, 1, ones);
  // For good.
  for (std::uint64_t rank = 0; rank < two.size(); ++rank) {
    const auto later = two.Publish(rank, first, 9);
    ASSERT_FALSE(later.ok());
    EXPECT_EQ(later.error().message(), why);
  }
  // The winner goes on.
  one.PublishAll(Trained(ones, 4), 2);
  one.WorkUntilIdle();
  ExpectVersion(world, 2, Trained(ones, 4));
}

TEST_P(GroupTest, TheFirstVersionIsRacedForToo) {
  World world;
  Group one(world, GetParam());
  Group two(world, GetParam());
  const auto ones = one.PublishAll(SmallModel(1), 0);
  const auto twos = two.PublishAll(SmallModel(2), 0);
  for (bool more = true; more;) {
    more = two.Round();
    more = one.Round() || more;
  }
  EXPECT_EQ(Newest(world)->record.version, 0U);
  const bool one_won = ReadVersion(world, 0).tensors == SmallModel(1).tensors;
  ExpectVersion(world, 0, SmallModel(one_won ? 1 : 2));
  ExpectStage(one_won ? ones : twos, TicketStage::kCommitted);
  ExpectStage(one_won ? twos : ones, TicketStage::kFailed);
}

TEST_P(GroupTest, ARunWithASingleWriterNeedsNoPutIfAbsentForRecords) {
  World world(/*single_writer=*/true);
  std::map<std::uint64_t, Group::Hook> hooks;
  for (std::uint64_t rank = 0; rank <= GetParam(); ++rank) {
    hooks[rank] = [](std::string_view request, std::string_view key) {
      // A layout lies under its hash: whoever puts it puts the same.
      if (request == "put if absent") {
        EXPECT_TRUE(key.starts_with("layouts/")) << key;
      }
      return SimStore::Fate::kGoOn;
    };
  }
  Group group(world, GetParam(), {}, hooks);
  group.PublishAll(SmallModel(1), 0);
  group.PublishAll(SmallModel(2), 1);
  group.WorkUntilIdle();
  EXPECT_EQ(Newest(world)->record.version, 1U);
  Group other(world, GetParam());
  other.PublishAll(SmallModel(3), 2);
  other.WorkUntilIdle();
  const auto lost = group.PublishAll(SmallModel(4), 2);
  group.WorkUntilIdle();
  ExpectStage(lost, TicketStage::kFailed);
}

class RanksTest : public GroupTest {};
INSTANTIATE_TEST_SUITE_P(Ranks, RanksTest, ::testing::Values(1, 2, 3, 4, 7));

// A single process makes a delta (Publisher, TheLayoutMayChangeBetweenVersions).
TEST_P(RanksTest, AnotherLayoutIsARebase) {
  World world;
  Group group(world, GetParam());
  const Model model = SmallModel(1);
  group.PublishAll(model, 0);
  const Model other = WithOtherLayout(model);
  EXPECT_EQ(group.Publish(0, other, 1).error().message(), "wait") << "the version before is still read from the base";
  group.WorkUntilIdle();
  const auto tickets = group.PublishAll(other, 1);
  const Model last = [&] {
    Model trained = other;
    trained["norm"][3] ^= 1;
    return trained;
  }();
  group.PublishAll(last, 2);
  group.WorkUntilIdle();
  ExpectStage(tickets, TicketStage::kCommitted);
  ExpectVersion(world, 1, other);
  ExpectVersion(world, 2, last);
  EXPECT_EQ(Newest(world)->record.chain, 1U);
}

}  // namespace
}  // namespace weightwire::testing
