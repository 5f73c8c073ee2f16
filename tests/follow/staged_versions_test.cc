#include "follow/staged_versions.h"

#include <gtest/gtest.h>

#include "follow/follower_world.h"
#include "support/manual_clock.h"

namespace weightwire {
namespace {

// A target at version 0, and `versions` more to stage.
class StagedVersionsTest : public ::testing::Test {
 protected:
  void Publish(Version versions) {
    for (Version i = 0; i <= versions; ++i) maker_.Publish();
    const AnchorName anchor = maker_.records()[0].record.anchor->name;
    const auto load = AnchorLoad::Begin(maker_.run(), maker_.run().ReadAnchor(anchor).value(), maker_.records()[0],
                                        maker_.states()[0].layout, target_, maker_.pool())
                          .value();
    while (!load->IsComplete()) ASSERT_TRUE(load->LoadPortion().ok());
    ASSERT_TRUE(load->Commit().ok());
  }
  Result<std::shared_ptr<const StagedChange>> Decode(Version version, const StateView& view) {
    const Record& record = maker_.records()[version].record;
    std::vector<std::vector<std::uint8_t>> parts;
    for (const PartRef& part : *record.delta) parts.push_back(store_.Get(part.key, kMaxPutBytes).value());
    return DecodeVersion(record, maker_.records()[version - 1].record.state, parts, view, maker_.kernels(),
                         maker_.pool());
  }
  void Stage(Version from, Version to) {
    for (Version version = from; version <= to; ++version) {
      const auto view = staged_.View();
      ASSERT_TRUE(view.ok());
      auto change = Decode(version, *view.value());
      ASSERT_TRUE(change.ok()) << change.error().message();
      staged_.Push(maker_.records()[version], std::move(change).value());
    }
  }
  void ExpectLeadsTo(Version version) {
    const KnownRecord& record = maker_.records()[version];
    EXPECT_EQ(staged_.last().record.version, version);
    const auto change = staged_.Combined();
    EXPECT_EQ(change->state_after(), record.record.state);
    ASSERT_TRUE(target_.Apply(change, HeldOf(record)).ok());
    EXPECT_TRUE(target_.Verify().ok());
  }

  ManualClock clock_;
  MemoryStore store_{&clock_};
  RunMaker maker_{store_};
  MemoryTarget target_{maker_.kernels(), maker_.pool()};
  StagedVersions staged_{target_, maker_.pool()};
};

TEST_F(StagedVersionsTest, CombinesWhatIsStagedIntoOneChange) {
  Publish(3);
  EXPECT_TRUE(staged_.empty());
  Stage(1, 3);
  EXPECT_EQ(staged_.count(), 3U);
  ExpectLeadsTo(3);
}

TEST_F(StagedVersionsTest, FoldsOnceAndStagesFurtherVersionsOverThat) {
  Publish(8);
  Stage(1, 5);
  EXPECT_FALSE(staged_.is_combined());
  staged_.Combine();
  EXPECT_TRUE(staged_.is_combined());
  EXPECT_EQ(staged_.Combined(), staged_.Combined());
  Stage(6, 8);
  EXPECT_EQ(staged_.count(), 8U);
  ExpectLeadsTo(8);
}

TEST_F(StagedVersionsTest, CountsEveryVersionThoughItFoldsThem) {
  const Version versions = StagedVersions::kFoldAt * StagedVersions::kFoldAt + 5;
  Publish(versions);
  Stage(1, versions);
  EXPECT_EQ(staged_.count(), versions);
  ExpectLeadsTo(versions);
}

TEST_F(StagedVersionsTest, DropsLaterVersionsAndThoseFoldedWithThem) {
  const Version fold = StagedVersions::kFoldAt;
  Publish(fold + 3);
  Stage(1, fold + 3);
  staged_.DropAfter(fold + 1);
  EXPECT_EQ(staged_.count(), fold + 1);
  EXPECT_EQ(staged_.last().record.version, fold + 1);
  staged_.DropAfter(fold - 1);  // within the folded ones
  EXPECT_TRUE(staged_.empty());
  Stage(1, 2);
  ExpectLeadsTo(2);
}

TEST_F(StagedVersionsTest, ShowsTheTargetItselfOnceItIsCleared) {
  Publish(2);
  Stage(1, 2);
  staged_.Clear();
  EXPECT_TRUE(staged_.empty());
  EXPECT_EQ(staged_.View().value()->digests(), target_.View().value().digests());
}

TEST_F(StagedVersionsTest, RefusesADeltaThatLeadsToAnotherStateThanItsRecordSays) {
  Publish(2);
  Record record = maker_.records()[1].record;
  record.state = maker_.records()[2].record.state;
  const std::vector<std::vector<std::uint8_t>> parts = {store_.Get(record.delta->front().key, kMaxPutBytes).value()};
  const auto change = DecodeVersion(record, maker_.records()[0].record.state, parts, *staged_.View().value(),
                                    maker_.kernels(), maker_.pool());
  ASSERT_FALSE(change.ok());
  EXPECT_EQ(change.error().code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace weightwire
