#include "sim/history_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "sim/follower_machine.h"
#include "sim/gc_machine.h"
#include "sim/mirror_machine.h"
#include "support/wrong_writer_store.h"

namespace weightwire::sim {

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

std::vector<FollowerVersion> AddFollowers(World& world, Bucket& bucket, Oracle& oracle, Random& plan,
                                          const Planted& planted) {
  std::vector<FollowerVersion> held;
  const std::uint64_t follower_count = 1 + plan.Below(3);
  for (std::uint64_t i = 0; i < follower_count; ++i) {
    FollowerOptions follower;
    follower.keep_lease = plan.Below(4) != 0;
    follower.apply_at_once = plan.Below(3) != 0;
    follower.every_version = plan.Below(3) == 0;
    follower.ahead_bytes = plan.Below(2) == 0 ? 1000 : 1'000'000;
    if (plan.Below(2) == 0) {
      auto machine =
          std::make_unique<MemoryFollower>(world, bucket, oracle, fmt::format("follower{}", i), follower, planted);
      held.emplace_back([machine = machine.get()] { return machine->held(); });
      world.Add(std::move(machine));
    } else {
      auto machine =
          std::make_unique<MirrorFollower>(world, bucket, oracle, fmt::format("mirror{}", i), follower, planted);
      held.emplace_back([machine = machine.get()] { return machine->held(); });
      world.Add(std::move(machine));
    }
  }
  return held;
}

std::unique_ptr<Store> WithFault(std::unique_ptr<Store> store, PublisherFault fault) {
  using weightwire::testing::StoreFault;
  using weightwire::testing::WrongWriterStore;
  switch (fault) {
    case PublisherFault::kRecordBeforeParts:
      return std::make_unique<WrongWriterStore>(std::move(store), StoreFault::kRecordBeforeParts);
    case PublisherFault::kPartKeyWithoutHash:
      return std::make_unique<WrongWriterStore>(std::move(store), StoreFault::kPartKeyWithoutHash);
    case PublisherFault::kLostAnswerIsSuccess:
      return std::make_unique<WrongWriterStore>(std::move(store), StoreFault::kLostAnswerIsSuccess);
    default:
      return store;
  }
}

void AddGc(World& world, Bucket& bucket, Random& plan, std::chrono::seconds grace, const Planted& planted) {
  if (plan.Below(3) == 0) return;
  GcOptions gc;
  gc.policy.anchors = 2;
  gc.policy.minimum_age = std::chrono::seconds(plan.Below(2) * 1200);
  gc.grace = grace * plan.Below(2);
  world.Add(std::make_unique<GcMachine>(world, bucket, "gc", gc, planted));
}

bool AllArrived(const std::vector<FollowerVersion>& held, const Oracle& oracle) {
  return oracle.version_count() != 0 && std::all_of(held.begin(), held.end(), [&](const auto& version) {
           return version() == oracle.version_count() - 1;
         });
}

}  // namespace weightwire::sim
