#include "sim/rank_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace weightwire::sim {
namespace {

// Of its steps, one in so many:
constexpr std::uint64_t kTimeJumps = 25;
constexpr std::uint64_t kNotices = 3;     // that a rank cannot go on
constexpr std::uint64_t kPreempts = 100;  // ends it without a reason
constexpr std::uint64_t kStopsLingering = 30;
// Once nothing goes wrong any more: who is to run next is still drawn, and a rank may be passed over until the
// deadline.
constexpr int kMostCalmEnds = 2;
// How much later than others a rank calls although nothing is wrong with it, in tenths of the deadline.
constexpr std::uint64_t kLatestCallTenths = 7;
// Of its restarts, one in so many:
constexpr std::uint64_t kLingers = 4;
constexpr std::uint64_t kGoesBack = 3;

}  // namespace

RankJob::RankJob(World& world, Oracle& oracle, RankJobOptions options)
    : Machine(world, "job"),
      Process("job/agent"),
      oracle_(oracle),
      options_(std::move(options)),
      random_(world.random().Next()) {
  oracle_.on_version = [this](const Record& record) {
    for (const auto& generation : generations_) generation->book->OnVersion(record);
  };
}

void RankJob::AddMachines(Bucket& bucket) {
  for (std::uint64_t side = 0; side < kSides; ++side) {
    for (std::uint64_t rank = 0; rank < options_.most_ranks; ++rank) {
      auto machine = std::make_unique<RankMachine>(world(), bucket, oracle_, fmt::format("rank{}{}", "ab"[side], rank));
      sides_[side].push_back(machine.get());
      world().Add(std::move(machine));
    }
  }
}

std::vector<RankMachine*> RankJob::Members(const Generation& generation) const {
  std::vector<RankMachine*> members;
  for (const auto& side : sides_) {
    for (RankMachine* machine : side) {
      if (machine->IsOf(generation)) members.push_back(machine);
    }
  }
  return members;
}

void RankJob::EndAll(const Generation& generation) {
  for (RankMachine* machine : Members(generation)) world().Kill(*machine);
}

void RankJob::Start() {
  side_ = lingering_ == nullptr ? side_ : 1 - side_;
  auto& machines = sides_[side_];
  if (!std::ranges::all_of(machines, [](const RankMachine* machine) { return machine->IsFree(); })) return;
  auto next = std::make_shared<Generation>();
  next->number = generations_.size();
  next->options = options_.ranks;
  next->options.group->ranks = 1 + random_.Below(options_.most_ranks);
  next->retries_store = options_.retries_store;
  next->fault = options_.fault;
  if (generations_.empty()) next->death = options_.death;
  if (generations_.empty()) {
    next->book = std::make_shared<CallBook>(world(), oracle_, oracle_.FirstWeights(), 0);
  } else {
    CallBook& last = *generations_.back()->book;
    const std::uint64_t checkpoint = random_.Below(kGoesBack) == 0 ? random_.Below(last.size()) : last.size() - 1;
    const CallBook::Call& from = last.At(checkpoint);
    next->book = std::make_shared<CallBook>(world(), oracle_, *from.weights, from.step);
  }
  next->board = std::make_shared<Board>(world(), *machines[0]);
  next->board->on_put = [book = next->book](const std::string& key, const std::string& text) {
    book->OnPut(key, text);
  };
  world().Trace(fmt::format("generation {} of {} ranks", next->number, next->ranks()));
  generations_.push_back(next);
  current_ = next;
  for (std::uint64_t rank = 0; rank < next->ranks(); ++rank) machines[rank]->Begin(next, rank);
}

void RankJob::End() {
  const bool lingers = world().faults() && lingering_ == nullptr && random_.Below(kLingers) == 0;
  world().Trace(fmt::format("generation {} {}", current_->number, lingers ? "is thought to be gone" : "is ended"));
  if (lingers) {
    world().Saw("two generations at once");
    lingering_ = current_;
  } else {
    EndAll(*current_);
  }
  current_ = nullptr;
}

bool RankJob::IsOutOfOrder() const {
  const auto members = Members(*current_);
  return current_->cannot_start || members.size() != current_->ranks() ||
         std::ranges::any_of(members, [](const RankMachine* machine) { return machine->IsOutOfOrder(); });
}

void RankJob::Step() {
  if (!restarts_) return;
  if (!world().faults() && first_calm_ > generations_.size()) first_calm_ = generations_.size();
  if (world().faults() && random_.Below(kTimeJumps) == 0) {
    world().Trace("time passes");
    world().clock().Advance(options_.ranks.group->deadline / 10 *
                            static_cast<MonotonicTime::rep>(1 + random_.Below(15)));
  }
  if (lingering_ != nullptr && (!world().faults() || random_.Below(kStopsLingering) == 0)) {
    EndAll(*lingering_);
    lingering_ = nullptr;
  }
  if (current_ == nullptr) return Start();
  if (IsOutOfOrder()) {
    if (world().faults() && random_.Below(kNotices) != 0) return;
    if (IsCalm(*current_) && ++calm_ends_ > kMostCalmEnds) {
      world().Violation("nothing goes wrong any more, yet the ranks cannot go on");
    }
    return End();
  }
  if (world().faults() && random_.Below(kPreempts) == 0) End();
}

void RankJob::StopTraining() {
  if (current_ == nullptr) return;
  std::uint64_t most = 0;
  for (const RankMachine* machine : Members(*current_)) most = std::max(most, machine->calls() + 1);
  current_->end_call = std::min(current_->end_call, most);
}

bool RankJob::IsSettled() const {
  if (current_ == nullptr || lingering_ != nullptr || IsOutOfOrder()) return false;
  const auto members = Members(*current_);
  if (!std::ranges::all_of(members, [](const RankMachine* machine) { return machine->IsDone(); })) return false;
  return LeftOnBoard().empty();
}

std::string RankJob::LeftOnBoard() const {
  if (current_ == nullptr) return {};
  for (const auto& [key, text] : current_->board->texts()) {
    // The ends of the last anchors stay, for a rank that is late.
    if (!key.starts_with("ended/") && !current_->board->WasPutAgain(key)) return key;
  }
  return {};
}

void RankJob::FailOne(std::uint64_t rank, Failure failure) {
  WW_CHECK(IsSettled());
  restarts_ = false;
  stays_in_touch_ = rank != 0 || failure == Failure::kStopsCalling || failure == Failure::kIsUnplugged;
  world().Trace(fmt::format("rank {} fails, in way {}", rank, static_cast<int>(failure)));
  RankMachine& machine = *sides_[side_][rank];
  switch (failure) {
    case Failure::kDies:
      world().Kill(machine);
      return;
    case Failure::kFreezes:
      if (rank == 0) current_->board->Freeze();
      machine.Silence();
      return;
    case Failure::kHangs:
      machine.Silence();
      return;
    case Failure::kStopsCalling:
      machine.StopCalling();
      return;
    case Failure::kIsUnplugged:
      machine.Unplug();
      return;
  }
}

void RankJob::CallOnce() {
  ++current_->end_call;
  for (RankMachine* machine : Members(*current_)) {
    const auto tenths = static_cast<MonotonicTime::rep>(random_.Below(2) * random_.Below(kLatestCallTenths + 1));
    machine->CallNotBefore(world().clock().Monotonic() + options_.ranks.group->deadline / 10 * tenths);
  }
}

bool RankJob::CheckSurvivors() {
  bool all = true;
  for (RankMachine* machine : Members(*current_)) {
    machine->CheckOutcomesWithin(2 * options_.ranks.group->deadline);
    if (stays_in_touch_ && machine->IsOutOfOrder()) {
      world().Violation(fmt::format("{} was told nothing, although rank 0 and the board are there", machine->name()));
    }
    all = all && machine->HasOutcomes() && machine->HasMadeItsCalls();
  }
  return all;
}

}  // namespace weightwire::sim
