// A trainer with a publisher: one process trains and publishes, the others do the publisher's work, as its threads
// would.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "publish/publisher.h"
#include "sim/oracle.h"
#include "sim/planted.h"
#include "sim/sim_bucket.h"
#include "sim/world.h"
#include "support/sim_file_system.h"

namespace weightwire::sim {

struct TrainerOptions {
  bool base_on_disk = false;
  bool skip_when_full = false;
  std::uint64_t anchor_every = 5;
  PublisherFault fault = PublisherFault::kNone;  // planted
};

class PublisherMachine final : public Machine {
 public:
  PublisherMachine(World& world, Bucket& bucket, Oracle& oracle, std::string name, const TrainerOptions& options);

  std::vector<Process*> processes() override;
  void OnDeath(bool power_failed) override;
  void OnStart() override;

  // No more training: what was made is brought to its end.
  void StopTraining() { training_ = false; }
  // Nothing is left to do.
  [[nodiscard]] bool idle() const { return publisher_ != nullptr && publisher_->idle(); }
  // The newest committed version this publisher knows of, by its tickets.
  [[nodiscard]] std::uint64_t publishes() const { return publishes_; }

 private:
  class Trainer;
  class Worker;

  void Train();
  void Work(Lane lane);
  void Open();
  [[nodiscard]] bool IsWorking() const;

  Bucket& bucket_;
  Oracle& oracle_;
  TrainerOptions options_;
  weightwire::testing::SimDisk disk_;
  SeededRandom random_;
  std::unique_ptr<weightwire::testing::SimFileSystem> files_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Publisher> publisher_;
  std::vector<Ticket> tickets_;
  std::unique_ptr<Process> trainer_;
  std::vector<std::unique_ptr<Process>> workers_;
  int working_ = 0;
  Weights weights_;
  std::uint64_t step_ = 0;
  bool training_ = true;
  bool discard_conflicting_ = false;
  std::uint64_t publishes_ = 0;
};

}  // namespace weightwire::sim
