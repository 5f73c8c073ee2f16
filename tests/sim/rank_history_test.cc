// Histories of a publisher of several ranks. A failing one can be seen again, line by line: ./dev sim --ranks --seed N
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "sim/history.h"
#include "sim/sanitized.h"

namespace weightwire::sim {
namespace {

constexpr std::uint64_t kRankSeeds = kIsSanitized ? 10 : 200;

TEST(RankHistoryTest, RanksNeverPublishWhatNobodyMadeAndAllHaveOutcomes) {
  std::uint64_t versions = 0;
  std::map<std::string, std::uint64_t> sights;
  for (std::uint64_t seed = 0; seed < kRankSeeds; ++seed) {
    const HistoryOutcome outcome = RunRankHistory({.seed = seed, .planted = {}});
    ASSERT_FALSE(outcome.violation.has_value()) << "seed " << seed << ": " << *outcome.violation;
    versions += outcome.versions;
    for (const auto& [what, times] : outcome.sights) sights[what] += times;
  }
  // The histories are worth something: things get published in them.
  EXPECT_GT(versions, 5 * kRankSeeds);
  if (kRankSeeds < 100) return;
  for (const char* what :
       {"verdict: committed", "verdict: same", "verdict: failed", "verdict: stopped", "verdict: an anchor is due",
        "verdict: a rebase is due", "a rebase", "out of touch", "back in touch", "two generations at once"}) {
    EXPECT_GT(sights[what], kRankSeeds / 20) << what;
  }
}

TEST(RankHistoryTest, TheSameSeedGivesTheSameHistory) {
  EXPECT_EQ(RunRankHistory({.seed = 1, .planted = {}}).trace_hash,
            RunRankHistory({.seed = 1, .planted = {}}).trace_hash);
  EXPECT_NE(RunRankHistory({.seed = 1, .planted = {}}).trace_hash,
            RunRankHistory({.seed = 2, .planted = {}}).trace_hash);
}

// Whenever one rank is killed: the job is restarted, nothing wrong is published, and the chain goes on.
TEST(RankHistoryTest, ARankMayBeKilledBeforeAnyOfItsEffects) {
  constexpr std::uint64_t kDeaths = kIsSanitized ? 9 : 180;
  constexpr std::uint64_t kLastEffect = 300;  // of a rank, in its first generation
  std::uint64_t killed = 0;
  for (std::uint64_t i = 0; i < kDeaths; ++i) {
    const RankDeath death{i % 3, i * kLastEffect / kDeaths};
    const HistoryOutcome outcome = RunRankHistory({.seed = i, .planted = {}, .death = death});
    ASSERT_FALSE(outcome.violation.has_value())
        << "seed " << i << ", rank " << death.rank << " killed before its effect " << death.effect << ": "
        << *outcome.violation;
    killed += outcome.sights.contains("a rank is killed") ? 1 : 0;
  }
  EXPECT_GT(killed, kDeaths / 15);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// As in history_test.cc: what was planted on purpose must be found.
void ExpectFoundByRanks(PublisherFault fault) {
  constexpr std::uint64_t kEnough = 1500;
  for (std::uint64_t seed = 0; seed < kEnough; ++seed) {
    const HistoryOutcome outcome = RunRankHistory({.seed = seed, .planted = {.publisher = fault}});
    if (outcome.violation.has_value()) return;
  }
  ADD_FAILURE() << "not found in " << kEnough << " histories";
}

TEST(PlantedRankBugTest, ACommitWithoutTheLastRanksReportIsFound) {
  ExpectFoundByRanks(PublisherFault::kCommitWithoutLastRank);
}
TEST(PlantedRankBugTest, ARankThatGoesOnFromAFailedCallIsFound) { ExpectFoundByRanks(PublisherFault::kNoRollBack); }
TEST(PlantedRankBugTest, ACallMadeFromWhatWasTakenBackMeanwhileIsFound) {
  ExpectFoundByRanks(PublisherFault::kEpochIgnored);
}
TEST(PlantedRankBugTest, AVerdictBeforeTheRecordIsFound) { ExpectFoundByRanks(PublisherFault::kVerdictBeforeRecord); }
TEST(PlantedRankBugTest, ADeadlineThatFailsASentRecordIsFound) {
  ExpectFoundByRanks(PublisherFault::kDeadlineFailsSentRecord);
}

#endif

}  // namespace
}  // namespace weightwire::sim
