// A machine on which somebody runs gc, again and again.
#pragma once

#include <memory>
#include <vector>

#include "log/gc.h"
#include "sim/planted.h"
#include "sim/sim_bucket.h"
#include "sim/world.h"

namespace weightwire::sim {

class GcMachine final : public Machine, private Process {
 public:
  GcMachine(World& world, Bucket& bucket, std::string name, const GcOptions& options, const Planted& planted);

  std::vector<Process*> processes() override { return {this}; }
  void OnDeath(bool power_failed) override;
  void OnStart() override;

 private:
  void Step() override;

  Bucket& bucket_;
  GcOptions options_;
  const Planted planted_;
  SeededRandom random_;
  std::unique_ptr<BucketClient> client_;
  std::unique_ptr<weightwire::testing::LyingStore> store_;  // around client_
  std::unique_ptr<Collector> collector_;
};

}  // namespace weightwire::sim
