// A world in which everything that can go wrong does, by the numbers of a seed.
//
// Machines run processes: publisher, followers, gc. All are the real code, as step functions; one thread runs them in
// turn. Every effect of a process (a request to the store, a change of a disk) goes through World::Effect, which may
//   - let other processes run first, so that any two effects of one process can have others' between them;
//   - kill the machine there, after which none of its effects happens any more;
//   - let time pass.
// The same seed gives the same history, which TraceHash() names.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/sha256.h"
#include "support/manual_clock.h"

namespace weightwire::sim {

class World;

// How often things go wrong, in a thousand.
struct FaultRates {
  std::uint64_t crash = 4;             // of an effect: the machine dies before it
  std::uint64_t power_failure = 300;   // of a crash: un-synced data is lost, too
  std::uint64_t unavailable = 15;      // of a request: refused, nothing done
  std::uint64_t lost_answer = 15;      // of a write: done, or not, or later; nobody says
  std::uint64_t damaged_read = 10;     // of a read: other bytes come
  std::uint64_t disk_refuses = 3;      // of an effect on a disk
  std::uint64_t switch_process = 250;  // of an effect: somebody else runs first
  std::uint64_t long_pause = 3;        // of an effect: an hour passes first
};

// A thing that can be run, one step at a time. Several may share a machine: they die together.
class Process {
 public:
  explicit Process(std::string name) : name_(std::move(name)) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  virtual ~Process() = default;

  [[nodiscard]] const std::string& name() const { return name_; }
  virtual void Step() = 0;

 private:
  friend class World;
  std::string name_;
  bool busy_ = false;  // in the middle of a step
};

class Machine {
 public:
  Machine(World& world, std::string name) : world_(world), name_(std::move(name)) {}
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  virtual ~Machine() = default;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool dead() const { return dead_; }
  [[nodiscard]] World& world() const { return world_; }
  // The processes that run on it now.
  virtual std::vector<Process*> processes() = 0;
  // The machine died: drops everything in memory; its disk loses what was not synced if the power failed.
  virtual void OnDeath(bool power_failed) = 0;
  // It starts again.
  virtual void OnStart() = 0;
  // Whether it is to be killed before the effect that is about to happen. Called once for each.
  virtual bool DiesNow() { return false; }

 private:
  friend class World;
  World& world_;
  std::string name_;
  bool dead_ = false;
  bool power_failed_ = false;
};

class World {
 public:
  World(std::uint64_t seed, const FaultRates& rates) : random_(seed), rates_(rates) {}

  [[nodiscard]] Random& random() { return random_; }
  [[nodiscard]] ManualClock& clock() { return clock_; }
  [[nodiscard]] const FaultRates& rates() const { return rates_; }
  [[nodiscard]] std::uint64_t now() const { return sequence_; }  // effects so far
  [[nodiscard]] bool Chance(std::uint64_t in_thousand) { return faults_ && random_.Below(1000) < in_thousand; }
  [[nodiscard]] bool faults() const { return faults_; }

  void Add(std::unique_ptr<Machine> machine);

  // Somebody has looked, found nothing to do, and waits for so long, or less: there may be many who wait, and time must
  // not run away from those who do not.
  void Wait(std::chrono::nanoseconds at_most) { clock_.Advance(std::min(at_most, longest_wait_)); }
  void SetLongestWait(std::chrono::nanoseconds longest) { longest_wait_ = longest; }

  // Before every effect. False: the machine is dead, and the effect must not happen.
  [[nodiscard]] bool Effect(Machine& machine, std::string_view what, std::string_view on);

  // Somebody ends everything on the machine. It starts again as the dead do.
  void Kill(Machine& machine);

  // Runs a step of somebody; restarts the dead now and then.
  void RunOne();
  // From now on nothing goes wrong any more, and all machines are up.
  void Calm();

  // Something that must never be. The first one ends the run.
  void Violation(const std::string& what);
  [[nodiscard]] const std::optional<std::string>& violation() const { return violation_; }

  // Something that a history is worth more for having had it.
  void Saw(const std::string& what) { ++sights_[what]; }
  [[nodiscard]] const std::map<std::string, std::uint64_t>& sights() const { return sights_; }

  void Trace(std::string_view line);
  // Every line so far, hashed.
  [[nodiscard]] std::string TraceHash();
  // Lines are shown as they come.
  void Show(bool show) { show_ = show; }

 private:
  void RunProcess(Machine& machine, Process& process);
  void Bury(Machine& machine);
  [[nodiscard]] bool IsBusy(Machine& machine) const;

  SeededRandom random_;
  FaultRates rates_;
  ManualClock clock_;
  std::chrono::nanoseconds longest_wait_ = std::chrono::nanoseconds::max();
  bool faults_ = true;
  std::uint64_t sequence_ = 0;
  int depth_ = 0;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::optional<std::string> violation_;
  std::map<std::string, std::uint64_t> sights_;
  Sha256Digest trace_{};
  bool show_ = false;
};

}  // namespace weightwire::sim
