#include "sim/publisher_machine.h"

#include <fmt/format.h>

#include "sim/history_parts.h"

namespace weightwire::sim {

using weightwire::testing::SimFileSystem;

class PublisherMachine::Trainer final : public Process {
 public:
  explicit Trainer(PublisherMachine& machine) : Process(machine.name() + "/trainer"), machine_(machine) {}
  void Step() override { machine_.Train(); }

 private:
  PublisherMachine& machine_;
};

class PublisherMachine::Worker final : public Process {
 public:
  Worker(PublisherMachine& machine, Lane lane)
      : Process(fmt::format("{}/lane{}", machine.name(), static_cast<int>(lane))), machine_(machine), lane_(lane) {}
  void Step() override { machine_.Work(lane_); }

 private:
  PublisherMachine& machine_;
  Lane lane_;
};

PublisherMachine::PublisherMachine(World& world, Bucket& bucket, Oracle& oracle, std::string name,
                                   const TrainerOptions& options)
    : Machine(world, std::move(name)),
      bucket_(bucket),
      oracle_(oracle),
      options_(options),
      random_(world.random().Next()),
      trainer_(std::make_unique<Trainer>(*this)),
      weights_(oracle.FirstWeights()) {
  for (const Lane lane : kAllLanes) workers_.push_back(std::make_unique<Worker>(*this, lane));
}

std::vector<Process*> PublisherMachine::processes() {
  std::vector<Process*> all = {trainer_.get()};
  for (const auto& worker : workers_) all.push_back(worker.get());
  return all;
}

void PublisherMachine::OnStart() {
  store_ = WithFault(std::make_unique<BucketClient>(bucket_, *this), options_.fault);
  files_ = std::make_unique<SimFileSystem>(disk_, [this](std::string_view effect, const FileSystem::Path& path) {
    if (!world().Effect(*this, effect, path.string())) return SimFileSystem::Fate::kDie;
    const bool refuse = world().Chance(world().rates().disk_refuses);
    if (refuse) world().Trace("the disk refuses");
    return refuse ? SimFileSystem::Fate::kRefuse : SimFileSystem::Fate::kGoOn;
  });
}

void PublisherMachine::OnDeath(bool power_failed) {
  publisher_ = nullptr;
  tickets_.clear();
  files_ = nullptr;
  store_ = nullptr;
  if (power_failed) disk_.Crash(world().random());
  // The trainer comes back with a checkpoint of its own: some state of the past, or what it had.
  if (oracle_.version_count() != 0 && world().random().Below(3) == 0) weights_ = *oracle_.SomeWeights();
}

bool PublisherMachine::IsWorking() const { return working_ != 0; }

void PublisherMachine::Open() {
  Random& random = random_;
  auto run = Run::Create(*store_, false, random);
  if (!run.ok()) return;
  PublisherOptions options;
  options.anchor_every = options_.anchor_every;
  options.max_versions = 4;
  options.skip_when_full = options_.skip_when_full;
  options.state_directory = "/state";
  options.base_on_disk = options_.base_on_disk;
  options.discard_conflicting = discard_conflicting_;
  PublisherTools tools;
  tools.clock = &world().clock();
  tools.random = &random;
  tools.files = files_.get();
  tools.kernels = &oracle_.kernels();
  tools.pool = &oracle_.pool();
  auto publisher = Publisher::Open(run.value(), options, tools);
  if (publisher.ok()) {
    world().Trace(name() + " is open");
    publisher_ = std::move(publisher).value();
    discard_conflicting_ = false;
  } else {
    world().Trace(fmt::format("{} cannot open: {}", name(), publisher.error().message()));
    // A person looks at it, and says: go on from what the other has published.
    if (publisher.error().code() == ErrorCode::kConflict) discard_conflicting_ = true;
  }
}

void PublisherMachine::Train() {
  if (publisher_ == nullptr) {
    if (!IsWorking()) Open();
    return;
  }
  if (publisher_->status().fatal_error.has_value()) {
    if (IsWorking()) return;
    world().Trace(name() + " has lost to another publisher");
    publisher_ = nullptr;
    discard_conflicting_ = true;
    return;
  }
  if (!training_) return;
  oracle_.Train(weights_);
  step_ = random_.Below(15) == 0 ? random_.Below(step_ + 1) : step_ + 1;
  oracle_.MayBePublished(weights_);
  const auto ticket = publisher_->Publish({weights_.layout, weights_.views()}, step_);
  if (dead()) return;
  if (!ticket.ok()) {
    world().Trace(fmt::format("{} cannot publish: {}", name(), ticket.error().message()));
    return;
  }
  if (ticket.value().has_value()) ++publishes_;
}

void PublisherMachine::Work(Lane lane) {
  if (publisher_ == nullptr) return;
  auto job = publisher_->Next(lane);
  if (!job.has_value()) {
    // It may be waiting for time to pass.
    world().Wait(std::chrono::milliseconds(100));
    return;
  }
  ++working_;
  publisher_->Execute(*job);
  --working_;
  if (!dead()) publisher_->Finish(*std::move(job));
}

}  // namespace weightwire::sim
