// Thousands of histories, each from a seed. A failing one can be seen again, line by line: ./dev sim --seed N
#include "sim/history.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/sanitized.h"

namespace weightwire::sim {
namespace {

using weightwire::testing::Lie;
using weightwire::testing::MirrorFault;

constexpr std::uint64_t kSeeds = kIsSanitized ? 20 : 2000;

TEST(HistoryTest, NothingWrongIsEverHeldAndEverybodyArrives) {
  std::uint64_t versions = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const HistoryOutcome outcome = RunHistory({.seed = seed, .planted = {}});
    ASSERT_FALSE(outcome.violation.has_value()) << "seed " << seed << ": " << *outcome.violation;
    versions += outcome.versions;
  }
  // The histories are worth something: things get published in them.
  EXPECT_GT(versions, 10 * kSeeds);
}

TEST(HistoryTest, TheSameSeedGivesTheSameHistory) {
  for (std::uint64_t seed = 1; seed <= std::min<std::uint64_t>(3, kSeeds / 5); ++seed) {
    EXPECT_EQ(RunHistory({.seed = seed, .planted = {}}).trace_hash,
              RunHistory({.seed = seed, .planted = {}}).trace_hash);
  }
  EXPECT_NE(RunHistory({.seed = 1, .planted = {}}).trace_hash, RunHistory({.seed = 2, .planted = {}}).trace_hash);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// A simulator that finds nothing is worth nothing: bugs that were planted on purpose must be found. What it finds does
// not depend on how it was built, and some take hundreds of histories, so the release build shows it.
void ExpectFound(const Planted& planted) {
  constexpr std::uint64_t kEnough = 2000;
  for (std::uint64_t seed = 0; seed < kEnough; ++seed) {
    if (RunHistory({.seed = seed, .planted = planted}).violation.has_value()) return;
  }
  ADD_FAILURE() << "not found in " << kEnough << " histories";
}

TEST(PlantedBugTest, ARecordBeforeItsPartsIsFound) { ExpectFound({.publisher = PublisherFault::kRecordBeforeParts}); }
// From outside a lost answer cannot be made a failure that the publisher believes: it looks whose record is there. Its
// opposite is wrong in the same way, because the publisher then knows less of the chain than it thinks.
TEST(PlantedBugTest, ALostAnswerTakenForSuccessIsFound) {
  ExpectFound({.publisher = PublisherFault::kLostAnswerIsSuccess});
}
TEST(PlantedBugTest, FindsAGcThatIgnoresLeases) { ExpectFound({.gc_store = Lie::kNoLeases}); }
TEST(PlantedBugTest, FindsAFollowerWhoseLeaseIsNotWritten) { ExpectFound({.follower_stores = Lie::kLeaseWritten}); }
TEST(PlantedBugTest, FindsAFollowerThatDoesNotReadTheMarks) { ExpectFound({.follower_stores = Lie::kNoMarks}); }
TEST(PlantedBugTest, APartKeyWithoutItsHashIsFound) { ExpectFound({.publisher = PublisherFault::kPartKeyWithoutHash}); }
TEST(PlantedBugTest, FindsWeightsWrittenBeforeTheJournalIsDurable) {
  ExpectFound({.mirror = MirrorFault::kJournalNotDurable});
}
TEST(PlantedBugTest, FindsAJournalThatHoldsDifferences) {
  ExpectFound({.mirror = MirrorFault::kJournalHoldsDifferences});
}

#endif

}  // namespace
}  // namespace weightwire::sim
