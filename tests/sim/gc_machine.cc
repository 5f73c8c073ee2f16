#include "sim/gc_machine.h"

#include <fmt/format.h>

namespace weightwire::sim {

GcMachine::GcMachine(World& world, Bucket& bucket, std::string name, const GcOptions& options, const Planted& planted)
    : Machine(world, name),
      Process(name + "/gc"),
      bucket_(bucket),
      options_(options),
      planted_(planted),
      random_(world.random().Next()) {}

void GcMachine::OnStart() {
  client_ = std::make_unique<BucketClient>(bucket_, *this);
  store_ = std::make_unique<weightwire::testing::LyingStore>(*client_, planted_.gc_store);
}

void GcMachine::OnDeath(bool /*power_failed*/) {
  collector_ = nullptr;
  store_ = nullptr;
  client_ = nullptr;
}

void GcMachine::Step() {
  if (collector_ == nullptr) {
    const auto run = Run::Open(*store_);
    if (run.ok()) collector_ = std::make_unique<Collector>(run.value(), options_, random_);
    return;
  }
  const auto step = collector_->Step();
  if (dead()) return;
  if (!step.ok()) {
    world().Trace(fmt::format("{} cannot go on: {}", Machine::name(), step.error().message()));
    // Somebody ends it now and then and starts another.
    if (random_.Below(8) == 0) collector_ = nullptr;
    return;
  }
  if (step.value().what == GcStep::What::kDone) collector_ = nullptr;
  if (step.value().what == GcStep::What::kWaits) world().Wait(step.value().wait / 4);
}

}  // namespace weightwire::sim
