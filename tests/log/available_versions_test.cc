#include "log/available_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "log/histories.h"
#include "support/manual_clock.h"
#include "support/memory_store.h"

namespace weightwire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class AvailableVersionsTest : public ::testing::Test {
 protected:
  // Versions 0 to `newest` with anchors of 0 and 3.
  void Publish(Version newest) {
    history_.AddWithAnchor(100);
    while (history_.size() <= newest) {
      const Version version = history_.Add();
      if (version == 3) history_.AddAnchor(3, 60);
    }
  }
  AvailableVersions List(Version first, Version last) {
    return AvailableVersions::List(history_.run(), history_.at(first), last).value();
  }
  // Those from `first` on that can be fetched.
  std::vector<Version> Available(Version first = 0) {
    AvailableVersions available = List(first, history_.newest().version);
    std::vector<Version> versions;
    for (Version version = first; version < history_.size(); ++version) {
      if (available.Next(history_.at(version))) versions.push_back(version);
    }
    return versions;
  }
  void RemoveDelta(Version version) {
    for (const PartRef& part : *history_.at(version).delta) ASSERT_TRUE(store_.Remove(part.key).ok());
  }
  void RemoveAnchor(Version version) {
    for (const KnownAnchor& anchor : history_.anchors()) {
      const AnchorName& name = anchor.manifest.name;
      if (name.version != version) continue;
      ASSERT_TRUE(store_.Remove(AnchorManifestKey(name)).ok());
    }
  }

  ManualClock clock_;
  MemoryStore store_{&clock_};
  testing::History history_{store_, 1};
};

TEST_F(AvailableVersionsTest, AllVersionsOfAWholeRunCanBeFetched) {
  Publish(5);
  EXPECT_THAT(Available(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(Available(2), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(Available(5), ElementsAre(5));
}

TEST_F(AvailableVersionsTest, VersionsBeforeTheOldestAnchorThatIsLeftCannot) {
  Publish(5);
  RemoveAnchor(0);
  EXPECT_THAT(Available(), ElementsAre(3, 4, 5));
  EXPECT_THAT(Available(1), ElementsAre(3, 4, 5));
}

TEST_F(AvailableVersionsTest, AMissingDeltaEndsWhatAnAnchorLeadsTo) {
  Publish(6);
  RemoveDelta(2);
  RemoveDelta(5);
  for (const Version first : {0U, 1U}) EXPECT_THAT(Available(first), ::testing::Contains(1)) << first;
  EXPECT_THAT(Available(), ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(Available(2), ElementsAre(3, 4));
  EXPECT_THAT(Available(6), IsEmpty());
}

TEST_F(AvailableVersionsTest, OneOfSeveralPartsIsNotEnough) {
  history_.AddWithAnchor();
  history_.Add({10, 20});
  ASSERT_TRUE(store_.Remove(history_.at(1).delta->back().key).ok());
  EXPECT_THAT(Available(), ElementsAre(0));
}

TEST_F(AvailableVersionsTest, AVersionWithoutPartsNeedsNone) {
  history_.AddWithAnchor();
  history_.Add({});
  history_.Add();
  history_.Add({});
  EXPECT_THAT(Available(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Available(2), ElementsAre(2, 3));
}

TEST_F(AvailableVersionsTest, AnAnchorBeforeARebaseLeadsToNothingAfterIt) {
  history_.AddWithAnchor();
  history_.Add();
  history_.AddWithAnchor();
  history_.Add();
  RemoveAnchor(2);
  EXPECT_THAT(Available(), ElementsAre(0, 1));
  EXPECT_THAT(Available(3), IsEmpty());
}

TEST_F(AvailableVersionsTest, AnAnchorTakesWhatItsSmallestCopyTakes) {
  Publish(4);
  history_.AddAnchor(3, 40);
  const AvailableVersions available = List(0, 4);
  EXPECT_EQ(available.AnchorBytes(0), 100U);
  EXPECT_EQ(available.AnchorBytes(1), std::nullopt);
  EXPECT_EQ(available.AnchorBytes(3), 40U);
  EXPECT_EQ(available.NextAnchor(0), 3U);
  EXPECT_EQ(available.NextAnchor(3), std::nullopt);
}

TEST_F(AvailableVersionsTest, NothingIsListedBeforeTheAnchorOrBehindTheLast) {
  Publish(5);
  RemoveDelta(1);
  EXPECT_THAT(Available(4), ElementsAre(4, 5));
  AvailableVersions available = List(4, 4);
  EXPECT_TRUE(available.Next(history_.at(4)));
  EXPECT_FALSE(available.Next(history_.at(5))) << "beyond what was listed";
}

}  // namespace
}  // namespace weightwire
