#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sim/history.h"
#include "sim/history_parts.h"
#include "sim/oracle.h"
#include "sim/publisher_machine.h"
#include "sim/rank_job.h"
#include "sim/sim_bucket.h"
#include "sim/world.h"

namespace weightwire::sim {
namespace {

constexpr int kWildSteps = 2500;
// Enough for everybody to arrive; more means that somebody never does.
constexpr int kCalmSteps = 160'000;
// So often everybody together may look and find nothing to do until the ranks' deadline is over.
constexpr int kIdleLooksPerDeadline = 1000;
// … when it matters who comes first: rank 0 at its own deadline, or the ranks at theirs, a little later.
constexpr int kIdleLooksPerLastDeadline = 5000;

// Those of one rank that the others were told have failed, and one that nothing is wrong with; and some more.
constexpr int kCallsUntilOneSucceeds = 5;

RankJobOptions JobOf(Random& plan, const HistoryOptions& options) {
  RankJobOptions job;
  job.ranks.group.emplace().deadline = std::chrono::seconds(20 * (1 + plan.Below(3)));
  job.ranks.max_versions = 1 + plan.Below(4);
  if (plan.Below(4) == 0) job.ranks.max_bytes = 500;
  job.ranks.anchor_every = plan.Below(3) == 0 ? 0 : 2 + plan.Below(6);
  job.ranks.anchor_percent = 100 * plan.Below(2);
  job.ranks.rebuild = plan.Below(6) != 0;
  job.fault = options.planted.publisher;
  job.death = options.death;
  job.retries_store = plan.Below(2) == 0;
  return job;
}

// A rank makes many small effects: it lives as long as a publisher of one process if it dies less often.
FaultRates RankRatesOf(Random& plan) {
  FaultRates rates = RatesOf(plan);
  rates.crash = plan.Below(3) == 0 ? 0 : 1;
  rates.long_pause = plan.Below(4) == 0 ? 1 : 0;
  return rates;
}

// One rank fails, and nothing else does: the others are told in time. If it comes back, all go on.
void LetOneFail(World& world, const Oracle& oracle, RankJob& job, Random& plan) {
  const std::uint64_t rank = plan.Below(job.ranks());
  auto failure = static_cast<RankJob::Failure>(plan.Below(RankJob::kFailures));
  if (job.ranks() == 1) failure = RankJob::Failure::kIsUnplugged;  // there must be somebody to be told
  job.FailOne(rank, failure);
  world.SetLongestWait(job.deadline() / kIdleLooksPerLastDeadline);
  const auto run_until = [&](const std::string& otherwise, const std::function<bool()>& done) {
    for (int steps = 0; !world.violation().has_value() && !done(); ++steps) {
      if (steps == kCalmSteps) return world.Violation(otherwise);
      world.RunOne();
    }
  };
  const std::uint64_t calls = 1 + plan.Below(3);
  for (std::uint64_t i = 0; i < calls; ++i) {
    job.CallOnce();
    run_until("one rank has failed, and the others do not come to an end", [&] { return job.CheckSurvivors(); });
  }
  if (failure == RankJob::Failure::kDies || failure == RankJob::Failure::kFreezes) return;
  job.Recover(rank);
  const std::size_t versions = oracle.version_count();
  for (int i = 0; i < kCallsUntilOneSucceeds && oracle.version_count() == versions; ++i) {
    run_until("a rank has come back, and the ranks do not come to an end", [&] { return job.IsSettled(); });
    job.CallOnce();
  }
  run_until("a rank has come back, and the ranks do not come to an end", [&] { return job.IsSettled(); });
  if (oracle.version_count() == versions) world.Violation("a rank has come back, yet nothing is published any more");
}

}  // namespace

HistoryOutcome RunRankHistory(const HistoryOptions& options) {
  SeededRandom plan(options.seed);
  World world(plan.Next(), RankRatesOf(plan));
  world.Show(options.show);
  Bucket bucket(world);
  Oracle oracle(world, bucket);
  const RankJobOptions job_options = JobOf(plan, options);
  world.SetLongestWait(job_options.ranks.group->deadline / kIdleLooksPerDeadline);
  auto owned = std::make_unique<RankJob>(world, oracle, job_options);
  RankJob& job = *owned;
  world.Add(std::move(owned));
  job.AddMachines(bucket);
  PublisherMachine* rival = nullptr;
  if (plan.Below(8) == 0) {
    TrainerOptions trainer;
    trainer.skip_when_full = true;
    auto machine = std::make_unique<PublisherMachine>(world, bucket, oracle, "rival", trainer);
    rival = machine.get();
    world.Add(std::move(machine));
  }
  const std::vector<FollowerVersion> held = AddFollowers(world, bucket, oracle, plan, options.planted);
  AddGc(world, bucket, plan, std::chrono::seconds(20), options.planted);

  for (int i = 0; i < kWildSteps && !world.violation().has_value(); ++i) world.RunOne();
  world.Calm();
  if (rival != nullptr) rival->StopTraining();
  int calm = 0;
  for (; rival != nullptr && calm < kCalmSteps && !world.violation().has_value() && !rival->idle(); ++calm) {
    world.RunOne();
  }
  // The ranks go on, whatever has happened: a few more versions, then everybody catches up.
  std::uint64_t generations = job.generation_count();
  std::size_t versions_before = job.version_count();
  for (; calm < kCalmSteps && !world.violation().has_value(); ++calm) {
    if (generations != job.generation_count()) {
      generations = job.generation_count();
      versions_before = 0;
    }
    if (job.version_count() > versions_before + 2) {
      job.StopTraining();
      if (job.IsSettled() && AllArrived(held, oracle)) break;
    }
    world.RunOne();
  }
  if (calm == kCalmSteps) {
    const std::string left = job.LeftOnBoard();
    world.Violation("nothing goes wrong any more, yet not everybody reaches the newest version" +
                    (left.empty() ? "" : ", and " + left + " is left on the board"));
  }

  if (!world.violation().has_value()) LetOneFail(world, oracle, job, plan);
  return {world.violation(), world.TraceHash(), world.now(), oracle.version_count(), world.sights()};
}

}  // namespace weightwire::sim
