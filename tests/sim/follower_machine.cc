#include "sim/follower_machine.h"

#include <fmt/format.h>

namespace weightwire::sim {

MemoryFollower::MemoryFollower(World& world, Bucket& bucket, Oracle& oracle, std::string name, FollowerOptions options,
                               const Planted& planted)
    : Machine(world, name),
      Process(name + "/follower"),
      bucket_(bucket),
      oracle_(oracle),
      options_(std::move(options)),
      planted_(planted),
      random_(world.random().Next()),
      id_(NewId(random_)) {
  options_.name = std::move(name);
}

void MemoryFollower::OnStart() {
  store_ = std::make_unique<FollowerStore>(bucket_, *this, options_.keep_lease, planted_.follower_stores);
  target_ = std::make_unique<MemoryTarget>(oracle_.kernels(), oracle_.pool());
  last_held_.reset();
}

void MemoryFollower::OnDeath(bool /*power_failed*/) {
  follower_ = nullptr;
  target_ = nullptr;
  store_ = nullptr;
}

std::optional<Version> MemoryFollower::held() const {
  if (target_ == nullptr || !target_->held().has_value()) return std::nullopt;
  return target_->held()->version;
}

void MemoryFollower::Step() {
  store_->BeginStep();
  if (follower_ == nullptr) {
    auto run = Run::Open(store_->store());
    if (!run.ok()) return;
    follower_ = std::make_unique<Follower>(run.value(), *target_, id_, options_,
                                           FollowerTools{&world().clock(), &oracle_.kernels(), &oracle_.pool()});
    return;
  }
  if (!options_.apply_at_once && follower_->HasStaged() && random_.Below(4) == 0) {
    if (follower_->Apply().ok()) CheckHeld();
    return;
  }
  const auto step = follower_->Step();
  if (dead()) return;
  if (!step.ok()) {
    Machine::world().Trace(fmt::format("{} cannot go on: {}", Machine::name(), step.error().message()));
    return;
  }
  if (step.value() == FollowerStep::kApply) CheckHeld();
  if (step.value() == FollowerStep::kUpToDate) world().Wait(std::chrono::seconds(1));
}

void MemoryFollower::CheckHeld() {
  const Version version = target_->held()->version;
  world().Trace(fmt::format("{} holds version {}", Machine::name(), version));
  if (last_held_.has_value() && version < *last_held_) {
    world().Violation(fmt::format("{} went back from version {} to {}", Machine::name(), *last_held_, version));
  }
  last_held_ = version;
  std::vector<std::span<const std::uint8_t>> tensors;
  for (std::size_t i = 0; i < target_->layout().size(); ++i) tensors.push_back(target_->bytes(i));
  oracle_.Expect(Machine::name(), version, target_->layout(), tensors);
}

}  // namespace weightwire::sim
