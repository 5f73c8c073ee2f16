#include "sim/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "sim/history_parts.h"
#include "sim/oracle.h"
#include "sim/publisher_machine.h"
#include "sim/sim_bucket.h"
#include "sim/world.h"

namespace weightwire::sim {
namespace {

constexpr int kWildSteps = 700;
// Enough for everybody to arrive; more means that somebody never does.
constexpr int kCalmSteps = 80'000;

}  // namespace

HistoryOutcome RunHistory(const HistoryOptions& options) {
  SeededRandom plan(options.seed);
  World world(plan.Next(), RatesOf(plan));
  world.Show(options.show);
  Bucket bucket(world);
  Oracle oracle(world, bucket);

  std::vector<PublisherMachine*> publishers;
  const std::uint64_t publisher_count = 1 + (plan.Below(4) == 0 ? 1 : 0);
  for (std::uint64_t i = 0; i < publisher_count; ++i) {
    TrainerOptions trainer;
    trainer.base_on_disk = plan.Below(2) == 0;
    trainer.skip_when_full = plan.Below(2) == 0;
    trainer.anchor_every = plan.Below(3) == 0 ? 0 : 2 + plan.Below(6);
    trainer.fault = options.planted.publisher;
    auto machine = std::make_unique<PublisherMachine>(world, bucket, oracle, fmt::format("publisher{}", i), trainer);
    publishers.push_back(machine.get());
    world.Add(std::move(machine));
  }
  const std::vector<FollowerVersion> held = AddFollowers(world, bucket, oracle, plan, options.planted);
  AddGc(world, bucket, plan, std::chrono::seconds(300), options.planted);

  for (int i = 0; i < kWildSteps && !world.violation().has_value(); ++i) world.RunOne();
  world.Calm();
  const auto synced = [&] {
    const bool idle = std::all_of(publishers.begin(), publishers.end(), [](const auto* p) { return p->idle(); });
    return idle && AllArrived(held, oracle);
  };
  // The chain goes on, whatever has happened: a few more versions, then everybody catches up.
  const std::size_t wild_versions = oracle.version_count();
  int calm = 0;
  for (; calm < kCalmSteps && !world.violation().has_value(); ++calm) {
    if (oracle.version_count() > wild_versions + 2) {
      for (PublisherMachine* publisher : publishers) publisher->StopTraining();
      if (synced()) break;
    }
    world.RunOne();
  }
  if (calm == kCalmSteps) world.Violation("nothing goes wrong any more, yet not everybody reaches the newest version");
  return {world.violation(), world.TraceHash(), world.now(), oracle.version_count()};
}

}  // namespace weightwire::sim
