// A machine for one rank of a trainer: one process trains and publishes, as PublisherRunner::Publish does; others do
// the lanes' work, as its threads would; one brings messages to and from the board, as the pump of the Python package
// does.
//
// It is free until a job (sim/rank_job.h) begins a rank on it, and again after it was ended or has died.
//
// Checked on the way: that a call's delta begins at the bits of the version before it; that no lane would spin; and,
// by the call book, every ticket.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "publish/publisher.h"
#include "sim/board_forger.h"
#include "sim/generation.h"
#include "sim/oracle.h"
#include "sim/sim_board.h"
#include "sim/sim_bucket.h"
#include "sim/world.h"
#include "store/wrappers/retry_store.h"

namespace weightwire::sim {

class RankMachine final : public Machine {
 public:
  RankMachine(World& world, Bucket& bucket, Oracle& oracle, std::string name);
  ~RankMachine() override;

  std::vector<Process*> processes() override;
  void OnDeath(bool power_failed) override;
  void OnStart() override {}
  bool DiesNow() override;

  [[nodiscard]] bool IsFree() const { return !dead() && generation_ == nullptr; }
  // REQUIRES: IsFree().
  void Begin(std::shared_ptr<Generation> generation, std::uint64_t rank);
  [[nodiscard]] bool IsOf(const Generation& generation) const { return !dead() && generation_.get() == &generation; }

  // The rest REQUIRES: a rank was begun.
  [[nodiscard]] std::uint64_t calls() const { return call_; }  // that have been made
  // It will publish nothing any more, or cannot now.
  [[nodiscard]] bool IsOutOfOrder() const;
  // It has made all its calls, and nothing is left to do.
  [[nodiscard]] bool IsDone() const;
  [[nodiscard]] bool HasMadeItsCalls() const { return silent_ || call_ >= calls_end_.value_or(generation_->end_call); }
  // All its tickets have come to an end.
  [[nodiscard]] bool HasOutcomes() const;
  // A violation if a ticket is without an end after this time.
  void CheckOutcomesWithin(MonotonicTime limit);
  // Nothing on it does anything any more, but it is not dead. REQUIRES: no process is in the middle of a step.
  void Silence() { silent_ = true; }
  // Its trainer makes no call any more.
  void StopCalling() { calls_end_ = call_; }
  // Its next call is not made before.
  void CallNotBefore(MonotonicTime time) { not_before_ = time; }
  // It cannot reach the bucket.
  void Unplug() { way_->Unplug(true); }
  // The end of the last three: it makes the calls that it has missed.
  void Recover();

 private:
  class Activity;
  class Sleeper;

  // A call of publish that has a ticket.
  struct Asked {
    std::uint64_t call = 0;
    Ticket ticket;
    MonotonicTime at{0};
    bool in_touch = true;
    bool checked = false;
  };
  // A thing to be done with the board.
  struct Errand {
    enum class What : std::uint8_t { kPut, kFind, kRemove };
    What what = What::kPut;
    std::string key;
    std::string text;
    bool again = false;  // it may be done already
  };

  void Open();
  void Train();
  void BeginCall();
  void Make();
  void EndCall(Ticket ticket);
  void Work(Lane lane);
  void Tamper(Job& job) const;
  bool FindBoardAgain();
  void Pump();
  void Look();
  void CheckDraft(const Draft& draft, const Admission& admission, const Weights& given);
  // Whether the whole machine does nothing for a while.
  [[nodiscard]] bool IsPaused();
  void Wait() { world().Wait(std::chrono::seconds(1)); }
  [[nodiscard]] MonotonicTime Now() { return world().clock().Monotonic(); }
  [[nodiscard]] std::uint64_t ranks() const { return generation_->ranks(); }

  Bucket& bucket_;
  Oracle& oracle_;
  SeededRandom random_;
  SeededRandom retry_random_;
  std::unique_ptr<Sleeper> sleeper_;
  std::vector<std::unique_ptr<Process>> everybodys_;
  std::vector<std::unique_ptr<Process>> rank_0s_;

  // The rank that runs on it.
  std::shared_ptr<Generation> generation_;
  std::uint64_t rank_ = 0;
  std::unique_ptr<Store> store_;
  BucketClient* way_ = nullptr;  // below store_
  std::unique_ptr<BoardClient> client_;
  std::unique_ptr<Publisher> publisher_;
  bool silent_ = false;
  std::optional<MonotonicTime> paused_until_;
  // Its trainer, within a call:
  struct Intent {
    std::uint64_t step = 0;
    std::optional<Error> refusal;
    std::shared_ptr<const Weights> weights;
    bool changes_meanwhile = false;  // the weights, while they are read
  };
  std::optional<Intent> intent_;
  std::optional<Admission> admission_;
  std::optional<Draft> draft_;
  bool alone_ = false;
  std::optional<MonotonicTime> stalled_until_;
  // And over all calls:
  std::uint64_t call_ = 0;
  std::optional<std::uint64_t> calls_end_;
  MonotonicTime not_before_{0};
  std::map<Version, std::vector<Digest>> made_;  // by the base's number, as of the last draft that has it
  std::vector<Asked> asked_;
  bool was_in_touch_ = true;
  std::optional<Version> made_serial_;  // of the last draft
  std::uint64_t effects_ = 0;
  // Its pump:
  std::optional<BoardForger> forger_;
  std::deque<Errand> errands_;
};

}  // namespace weightwire::sim
