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
    const HistoryOutcome outcome = RunRankHistory({.seed = seed, .bugs = {}, .planted = {}});
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
  EXPECT_EQ(RunRankHistory({.seed = 1, .bugs = {}, .planted = {}}).trace_hash,
            RunRankHistory({.seed = 1, .bugs = {}, .planted = {}}).trace_hash);
  EXPECT_NE(RunRankHistory({.seed = 1, .bugs = {}, .planted = {}}).trace_hash,
            RunRankHistory({.seed = 2, .bugs = {}, .planted = {}}).trace_hash);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// As in history_test.cc: what was planted on purpose must be found.
void ExpectFoundByRanks(const PlantedBugs& bugs) {
  constexpr std::uint64_t kEnough = 1500;
  for (std::uint64_t seed = 0; seed < kEnough; ++seed) {
    const HistoryOutcome outcome = RunRankHistory({.seed = seed, .bugs = bugs, .planted = {}});
    if (outcome.violation.has_value()) return;
  }
  ADD_FAILURE() << "not found in " << kEnough << " histories";
}

TEST(PlantedRankBugTest, ACommitWithoutTheLastRanksReportIsFound) {
  ExpectFoundByRanks({.commit_without_last_rank = true});
}
TEST(PlantedRankBugTest, ARankThatGoesOnFromAFailedCallIsFound) {
  ExpectFoundByRanks({.no_roll_back = true, .base_sums_unchecked = true});
}
TEST(PlantedRankBugTest, ACallMadeFromWhatWasTakenBackMeanwhileIsFound) {
  ExpectFoundByRanks({.epoch_ignored = true, .base_sums_unchecked = true});
}
TEST(PlantedRankBugTest, AVerdictBeforeTheRecordIsFound) { ExpectFoundByRanks({.verdict_before_record = true}); }
TEST(PlantedRankBugTest, ADeadlineThatFailsASentRecordIsFound) {
  ExpectFoundByRanks({.deadline_fails_sent_record = true});
}

#endif

}  // namespace
}  // namespace weightwire::sim
