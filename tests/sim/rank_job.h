// A job of several ranks, and whoever restarts it, as torchrun does: ranks start together, and when one is gone or
// cannot go on, all are ended, and as many as there are machines for start again, from a checkpoint of the trainer.
//
// Sometimes the old ranks are not ended at once: somebody thought they were gone. Then two generations publish, each
// with a board of its own.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/generation.h"
#include "sim/oracle.h"
#include "sim/rank_machine.h"
#include "sim/world.h"

namespace weightwire::sim {

struct RankJobOptions {
  std::uint64_t most_ranks = 5;
  PublisherOptions ranks;  // of all ranks of all generations, but for their numbers
  bool retries_store = false;
  PublisherFault fault = PublisherFault::kNone;  // planted
  std::optional<RankDeath> death;                // in the first generation
};

// One process that cannot fail. The machines it uses belong to the world, too.
class RankJob final : public Machine, private Process {
 public:
  RankJob(World& world, Oracle& oracle, RankJobOptions options);
  // Adds the machines for the ranks to the world, which owns them.
  void AddMachines(Bucket& bucket);

  std::vector<Process*> processes() override { return {this}; }
  void OnDeath(bool /*power_failed*/) override {}
  void OnStart() override {}

  // Versions of the generation that is there now, or 0.
  [[nodiscard]] std::size_t version_count() const { return current_ == nullptr ? 0 : current_->book->version_count(); }
  [[nodiscard]] std::uint64_t generation_count() const { return generations_.size(); }
  // No more calls than the ranks have begun already: what was made is brought to its end.
  void StopTraining();
  // All ranks of the generation are done, and nothing is left on their board.
  [[nodiscard]] bool IsSettled() const;
  // A key that is on the board although nobody may need it any more; empty if there is none.
  [[nodiscard]] std::string LeftOnBoard() const;

  // How a rank can fail the others when nothing else goes wrong. Rank 0's board fails in the first two.
  enum class Failure : std::uint8_t { kDies, kFreezes, kHangs, kStopsCalling, kIsUnplugged };
  static constexpr std::uint64_t kFailures = 5;
  // From now on nobody restarts anything. REQUIRES: IsSettled().
  void FailOne(std::uint64_t rank, Failure failure);
  // All but a rank that has failed make one more call, some of them later than others, but not by a deadline.
  void CallOnce();
  // The rank that failed goes on. REQUIRES: not in one of the first two ways.
  void Recover(std::uint64_t rank) { sides_[side_][rank]->Recover(); }
  [[nodiscard]] MonotonicTime deadline() const { return options_.ranks.group->deadline; }
  [[nodiscard]] std::uint64_t ranks() const { return current_->ranks(); }
  // Every living rank has outcomes for what it has asked for; a violation if one waits longer than it may.
  [[nodiscard]] bool CheckSurvivors();

 private:
  static constexpr std::uint64_t kSides = 2;

  void Step() override;
  void Start();
  void End();
  void EndAll(const Generation& generation);
  [[nodiscard]] bool IsOutOfOrder() const;
  [[nodiscard]] std::vector<RankMachine*> Members(const Generation& generation) const;
  // Whether it has come about after things went wrong for the last time: then hardly anything may end it.
  [[nodiscard]] bool IsCalm(const Generation& generation) const { return generation.number >= first_calm_; }

  Oracle& oracle_;
  const RankJobOptions options_;
  SeededRandom random_;
  // Generations take turns, so that one may linger while the next has begun.
  std::array<std::vector<RankMachine*>, kSides> sides_;
  std::uint64_t side_ = 0;  // of the current one
  std::vector<std::shared_ptr<Generation>> generations_;
  std::shared_ptr<Generation> current_;
  std::shared_ptr<Generation> lingering_;
  std::uint64_t first_calm_ = ~std::uint64_t{0};
  int calm_ends_ = 0;
  bool restarts_ = true;
  bool stays_in_touch_ = false;  // whoever has not failed: one who decides is there, and can be heard
};

}  // namespace weightwire::sim
