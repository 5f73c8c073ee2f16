// A server that follows a run into its memory.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "follow/follower.h"
#include "follow/targets/memory_target.h"
#include "sim/follower_store.h"
#include "sim/oracle.h"
#include "sim/planted.h"
#include "sim/sim_bucket.h"
#include "sim/world.h"

namespace weightwire::sim {

class MemoryFollower final : public Machine, private Process {
 public:
  MemoryFollower(World& world, Bucket& bucket, Oracle& oracle, std::string name, FollowerOptions options,
                 const Planted& planted);

  std::vector<Process*> processes() override { return {this}; }
  void OnDeath(bool power_failed) override;
  void OnStart() override;

  [[nodiscard]] std::optional<Version> held() const;

 private:
  void Step() override;
  void CheckHeld();

  Bucket& bucket_;
  Oracle& oracle_;
  FollowerOptions options_;
  const Planted planted_;
  SeededRandom random_;
  Id id_;
  std::unique_ptr<FollowerStore> store_;
  std::unique_ptr<MemoryTarget> target_;
  std::unique_ptr<Follower> follower_;
  std::optional<Version> last_held_;
};

}  // namespace weightwire::sim
