#include "sim/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace weightwire::sim {
namespace {

constexpr int kMaxDepth = 4;
// A dead machine starts again with this chance each time it could.
constexpr std::uint64_t kRestartInThousand = 100;

}  // namespace

void World::Add(std::unique_ptr<Machine> machine) {
  machines_.push_back(std::move(machine));
  machines_.back()->OnStart();
}

bool World::IsBusy(Machine& machine) const {
  const auto processes = machine.processes();
  return std::any_of(processes.begin(), processes.end(), [](const Process* process) { return process->busy_; });
}

void World::RunProcess(Machine& machine, Process& process) {
  process.busy_ = true;
  ++depth_;
  process.Step();
  --depth_;
  process.busy_ = false;
  (void)machine;
}

void World::Bury(Machine& machine) {
  Trace(fmt::format("{} is gone{}", machine.name(), machine.power_failed_ ? ", its power failed" : ""));
  machine.OnDeath(machine.power_failed_);
}

bool World::Effect(Machine& machine, std::string_view what, std::string_view on) {
  if (machine.dead_) return false;
  clock_.Advance(std::chrono::milliseconds(1 + random_.Below(50)));
  if (Chance(rates_.long_pause)) clock_.Advance(std::chrono::hours(1));
  if (depth_ < kMaxDepth && !violation_.has_value() && Chance(rates_.switch_process)) RunOne();
  if (machine.dead_) return false;  // another of its processes ran into its end
  ++sequence_;
  if (machine.DiesNow()) {
    machine.dead_ = true;
    Trace(fmt::format("{} is killed before {} {}", machine.name(), what, on));
    return false;
  }
  if (Chance(rates_.crash)) {
    machine.dead_ = true;
    machine.power_failed_ = random_.Below(1000) < rates_.power_failure;
    Trace(fmt::format("{} dies before {} {}", machine.name(), what, on));
    return false;
  }
  Trace(fmt::format("{} {} {}", machine.name(), what, on));
  return true;
}

void World::Kill(Machine& machine) {
  if (machine.dead_) return;
  machine.dead_ = true;
  Trace(machine.name() + " is ended");
}

void World::RunOne() {
  struct Choice {
    Machine* machine;
    Process* process;  // none: bury or start it
  };
  std::vector<Choice> choices;
  for (const auto& machine : machines_) {
    if (machine->dead_) {
      // One that is in the middle of something must first come to its end.
      if (!IsBusy(*machine)) choices.push_back({machine.get(), nullptr});
      continue;
    }
    for (Process* process : machine->processes()) {
      if (!process->busy_) choices.push_back({machine.get(), process});
    }
  }
  if (choices.empty()) return;
  const Choice choice = choices[random_.Below(choices.size())];
  if (choice.process != nullptr) {
    RunProcess(*choice.machine, *choice.process);
    return;
  }
  if (faults_ && random_.Below(1000) >= kRestartInThousand) return;
  Bury(*choice.machine);
  choice.machine->dead_ = false;
  choice.machine->power_failed_ = false;
  Trace(choice.machine->name() + " starts");
  choice.machine->OnStart();
}

void World::Calm() {
  faults_ = false;
  for (const auto& machine : machines_) {
    if (!machine->dead_) continue;
    Bury(*machine);
    machine->dead_ = false;
    machine->power_failed_ = false;
    machine->OnStart();
  }
}

void World::Violation(const std::string& what) {
  if (violation_.has_value()) return;
  Trace("VIOLATION: " + what);
  violation_ = what;
}

void World::Trace(std::string_view line) {
  Sha256 hash;
  hash.Update(trace_);
  hash.Update({reinterpret_cast<const std::uint8_t*>(line.data()), line.size()});
  trace_ = hash.Finish();
  if (show_)
    std::printf("%8llu %.*s\n", static_cast<unsigned long long>(sequence_), static_cast<int>(line.size()), line.data());
}

std::string World::TraceHash() { return ToHex(std::span<const std::uint8_t>(trace_)); }

}  // namespace weightwire::sim
