// What histories have in common: how often things go wrong in one, and who reads the run.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "log/gc.h"
#include "sim/history.h"
#include "sim/oracle.h"
#include "sim/sim_bucket.h"
#include "sim/world.h"

namespace weightwire::sim {

// Histories differ in what goes wrong how often: rare faults let a history get far, frequent ones pile up.
FaultRates RatesOf(Random& random);

// Adds followers, as the plan says. Returns for each a function that returns the version that it holds, while the world
// lives.
using FollowerVersion = std::function<std::optional<Version>()>;
std::vector<FollowerVersion> AddFollowers(World& world, Bucket& bucket, Oracle& oracle, Random& plan,
                                          const Planted& planted);

// The store that a publisher sees, if a bug is planted in it.
std::unique_ptr<Store> WithFault(std::unique_ptr<Store> store, PublisherFault fault);

// Gc, if the plan says so. When it waits for readers without a lease, then for this long.
void AddGc(World& world, Bucket& bucket, Random& plan, std::chrono::seconds grace, const Planted& planted);

// Whether all hold the newest version, and there is one.
[[nodiscard]] bool AllArrived(const std::vector<FollowerVersion>& held, const Oracle& oracle);

}  // namespace weightwire::sim
