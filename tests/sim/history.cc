#include "sim/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "sim/follower_machine.h"
#include "sim/gc_machine.h"
#include "sim/mirror_machine.h"
#include "sim/oracle.h"
#include "sim/publisher_machine.h"
#include "sim/sim_bucket.h"
#include "sim/world.h"

namespace weightwire::sim {
namespace {

constexpr int kWildSteps = 700;
// Enough for everybody to arrive; more means that somebody never does.
constexpr int kCalmSteps = 20'000;

// Histories differ in what goes wrong how often: rare faults let a history get far, frequent ones pile up.
FaultRates RatesOf(Random& random) {
  const std::uint64_t scale = 1 + random.Below(4);
  FaultRates rates;
  rates.crash = random.Below(3) * scale;
  rates.unavailable = 10 * random.Below(4) * scale;
  rates.lost_answer = 10 * random.Below(4) * scale;
  rates.damaged_read = 5 * random.Below(4) * scale;
  rates.disk_refuses = random.Below(3) * scale;
  rates.long_pause = random.Below(4);
  return rates;
}

}  // namespace

HistoryOutcome RunHistory(const HistoryOptions& options) {
  SeededRandom plan(options.seed);
  World world(plan.Next(), RatesOf(plan));
  world.Show(options.show);
  Bucket bucket(world);
  Oracle oracle(world, bucket);

  std::vector<PublisherMachine*> publishers;
  std::vector<std::function<std::optional<Version>()>> held;  // by each follower
  const std::uint64_t publisher_count = 1 + (plan.Below(4) == 0 ? 1 : 0);
  for (std::uint64_t i = 0; i < publisher_count; ++i) {
    TrainerOptions trainer;
    trainer.base_in_file = plan.Below(2) == 0;
    trainer.skip_when_full = plan.Below(2) == 0;
    trainer.anchor_every = plan.Below(3) == 0 ? 0 : 2 + plan.Below(6);
    trainer.bugs = options.bugs;
    auto machine = std::make_unique<PublisherMachine>(world, bucket, oracle, fmt::format("publisher{}", i), trainer);
    publishers.push_back(machine.get());
    world.Add(std::move(machine));
  }
  const std::uint64_t follower_count = 1 + plan.Below(3);
  for (std::uint64_t i = 0; i < follower_count; ++i) {
    FollowerOptions follower;
    follower.keep_lease = plan.Below(4) != 0;
    follower.apply_at_once = plan.Below(3) != 0;
    follower.every_version = plan.Below(3) == 0;
    follower.ahead_bytes = plan.Below(2) == 0 ? 1000 : 1'000'000;
    if (plan.Below(2) == 0) {
      auto machine = std::make_unique<MemoryFollower>(world, bucket, oracle, fmt::format("follower{}", i), follower);
      held.emplace_back([machine = machine.get()] { return machine->held(); });
      world.Add(std::move(machine));
    } else {
      auto machine = std::make_unique<MirrorFollower>(world, bucket, oracle, fmt::format("mirror{}", i), follower,
                                                      options.mirror_bugs);
      held.emplace_back([machine = machine.get()] { return machine->held(); });
      world.Add(std::move(machine));
    }
  }

  if (plan.Below(3) != 0) {
    GcOptions gc;
    gc.policy.anchors = 2;
    gc.policy.minimum_age = std::chrono::seconds(plan.Below(2) * 1200);
    gc.grace = std::chrono::seconds(plan.Below(2) * 300);
    gc.planted = options.bugs;
    world.Add(std::make_unique<GcMachine>(world, bucket, "gc", gc));
  }

  for (int i = 0; i < kWildSteps && !world.violation().has_value(); ++i) world.RunOne();
  world.Calm();
  const auto settled = [&] {
    const bool idle = std::all_of(publishers.begin(), publishers.end(), [](const auto* p) { return p->idle(); });
    return idle && oracle.version_count() != 0 && std::all_of(held.begin(), held.end(), [&](const auto& version) {
             return version() == oracle.version_count() - 1;
           });
  };
  // The chain goes on, whatever has happened: a few more versions, then everybody catches up.
  const std::size_t wild_versions = oracle.version_count();
  int calm = 0;
  for (; calm < kCalmSteps && !world.violation().has_value(); ++calm) {
    if (oracle.version_count() > wild_versions + 2) {
      for (PublisherMachine* publisher : publishers) publisher->StopTraining();
      if (settled()) break;
    }
    world.RunOne();
  }
  if (calm == kCalmSteps) world.Violation("nothing goes wrong any more, yet not everybody reaches the newest version");
  return {world.violation(), world.TraceHash(), world.now(), oracle.version_count()};
}

}  // namespace weightwire::sim
