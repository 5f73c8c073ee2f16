#include "sim/rank_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "support/holding.h"

namespace weightwire::sim {
namespace {

using weightwire::testing::Hold;
using weightwire::testing::Holding;

// How often a trainer does what it should not: one in so many calls.
constexpr std::uint64_t kRefuses = 40;
constexpr std::uint64_t kMeansAnotherStep = 40;
constexpr std::uint64_t kMeansAnotherLayout = 80;
constexpr std::uint64_t kWritesWhileRead = 60;
constexpr std::uint64_t kStalls = 60;
constexpr int kStallInDeadlines = 3;
// Of its machine's steps, one in so many: nothing on it goes on for up to two deadlines.
constexpr std::uint64_t kPauses = 3000;

// With a tensor that no other rank has.
Weights WithTensorOf(std::uint64_t rank, const Weights& weights) {
  std::vector<TensorSpec> specs = weights.layout->tensors();
  specs.push_back({fmt::format("zz.of_rank_{}", rank), DType::kU8, {3}});
  Weights more = weights;
  more.tensors.push_back({1, 2, 3});
  more.layout = std::make_shared<const Layout>(Layout::Make(specs, weights.layout->aliases()).value());
  return more;
}

}  // namespace

class RankMachine::Activity final : public Process {
 public:
  Activity(RankMachine& machine, std::string_view what, std::function<void()> step)
      : Process(fmt::format("{}/{}", machine.name(), what)), machine_(machine), step_(std::move(step)) {}
  void Step() override {
    if (machine_.IsPaused()) return machine_.Wait();
    step_();
  }

 private:
  RankMachine& machine_;
  std::function<void()> step_;
};

// Others go on meanwhile.
class RankMachine::Sleeper final : public weightwire::Sleeper {
 public:
  explicit Sleeper(RankMachine& machine) : machine_(machine) {}
  bool SleepFor(std::chrono::nanoseconds duration) override {
    machine_.world().clock().Advance(duration);
    return machine_.world().Effect(machine_, "waits", "");
  }

 private:
  RankMachine& machine_;
};

RankMachine::RankMachine(World& world, Bucket& bucket, Oracle& oracle, std::string name)
    : Machine(world, std::move(name)),
      bucket_(bucket),
      oracle_(oracle),
      random_(world.random().Next()),
      retry_random_(world.random().Next()),
      sleeper_(std::make_unique<Sleeper>(*this)) {
  const auto add = [&](std::vector<std::unique_ptr<Process>>& to, std::string_view what, std::function<void()> step) {
    to.push_back(std::make_unique<Activity>(*this, what, std::move(step)));
  };
  add(everybodys_, "trainer", [this] { Train(); });
  add(everybodys_, "pump", [this] { Pump(); });
  add(everybodys_, "upload", [this] { Work(Lane::kUpload); });
  add(everybodys_, "anchor", [this] { Work(Lane::kAnchor); });
  add(rank_0s_, "decide", [this] { Work(Lane::kDecide); });
  add(rank_0s_, "commit", [this] { Work(Lane::kCommit); });
}

RankMachine::~RankMachine() = default;

std::vector<Process*> RankMachine::processes() {
  std::vector<Process*> all;
  if (generation_ == nullptr || silent_) return all;
  for (const auto& process : everybodys_) all.push_back(process.get());
  if (rank_ != 0) return all;
  for (const auto& process : rank_0s_) all.push_back(process.get());
  return all;
}

void RankMachine::OnDeath(bool /*power_failed*/) {
  if (generation_ != nullptr && rank_ == 0) generation_->board->Close();
  publisher_ = nullptr;
  client_ = nullptr;
  store_ = nullptr;
  way_ = nullptr;
  generation_ = nullptr;
  errands_.clear();
  asked_.clear();
  made_.clear();
  made_serial_.reset();
  effects_ = 0;
  forger_.reset();
  intent_.reset();
  admission_.reset();
  draft_.reset();
  stalled_until_.reset();
  paused_until_.reset();
  calls_end_.reset();
  not_before_ = MonotonicTime(0);
  call_ = 0;
  was_in_touch_ = true;
  alone_ = false;
  silent_ = false;
}

void RankMachine::Begin(std::shared_ptr<Generation> generation, std::uint64_t rank) {
  WW_CHECK(IsFree());
  generation_ = std::move(generation);
  rank_ = rank;
  const MonotonicTime deadline = generation_->deadline();
  auto way = std::make_unique<BucketClient>(bucket_, *this, /*longest_outage=*/2 * deadline);
  way_ = way.get();
  store_ = std::move(way);
  if (generation_->retries_store) {
    RetryPolicy policy;
    policy.backoff.last = std::chrono::duration_cast<std::chrono::milliseconds>(deadline / 20);
    policy.deadline = std::chrono::duration_cast<std::chrono::milliseconds>(deadline / 10);
    store_ = std::make_unique<RetryStore>(std::move(store_), policy, &world().clock(), sleeper_.get(), &retry_random_);
  }
  if (rank_ == 0) forger_.emplace(generation_->fault, ranks());
  client_ = std::make_unique<BoardClient>(generation_->board, *this, deadline);
}

void RankMachine::Recover() {
  silent_ = false;
  calls_end_.reset();
  way_->Unplug(false);
}

bool RankMachine::IsPaused() {
  if (!world().faults()) return false;
  if (paused_until_.has_value() && Now() < *paused_until_) return true;
  paused_until_.reset();
  if (random_.Below(kPauses) != 0) return false;
  world().Trace(name() + " stands still");
  paused_until_ = Now() + generation_->deadline() / 10 * static_cast<MonotonicTime::rep>(1 + random_.Below(20));
  return true;
}

// --- its outcome ---

bool RankMachine::IsOutOfOrder() const {
  return publisher_ != nullptr &&
         (publisher_->status().fatal_error.has_value() || publisher_->disconnected().has_value());
}

bool RankMachine::HasOutcomes() const {
  return std::ranges::all_of(asked_, [](const Asked& asked) { return asked.ticket->IsFinal(); });
}

bool RankMachine::IsDone() const {
  return publisher_ != nullptr && HasMadeItsCalls() && publisher_->idle() && errands_.empty() && HasOutcomes();
}

void RankMachine::CheckOutcomesWithin(MonotonicTime limit) {
  for (const Asked& asked : asked_) {
    if (asked.ticket->IsFinal() || Now() - asked.at <= limit) continue;
    world().Violation(fmt::format("{} has made call {} {} s ago, and still has no outcome", name(), asked.call,
                                  std::chrono::duration_cast<std::chrono::seconds>(Now() - asked.at).count()));
  }
}

void RankMachine::Look() {
  const auto committed = publisher_->status().version;
  if (committed.has_value() && *committed >= oracle_.version_count()) {
    world().Violation(fmt::format("{} believes that there is a version {}", name(), *committed));
  }
  const bool out_of_order = IsOutOfOrder();
  const bool in_touch = !publisher_->disconnected().has_value();
  if (in_touch != std::exchange(was_in_touch_, in_touch)) world().Saw(in_touch ? "back in touch" : "out of touch");
  for (Asked& asked : asked_) {
    if (out_of_order) asked.in_touch = false;
    if (!asked.ticket->IsFinal()) continue;
    if (!asked.checked) world().Trace(fmt::format("{} call {} {}", name(), asked.call, NameOf(asked.ticket->stage)));
    asked.checked = true;
    // Again and again: an end is an end.
    generation_->book->CheckTicket(name(), asked.call, *asked.ticket, asked.in_touch);
  }
}

// --- the trainer ---

void RankMachine::Open() {
  if (rank_ != 0 && !generation_->start.has_value()) return Wait();
  const auto open = [&]() -> Result<std::unique_ptr<Publisher>> {
    WW_TRY(Run run, rank_ == 0 ? Run::Create(*store_, false, random_) : Run::Open(*store_));
    PublisherOptions options = generation_->options;
    options.group->rank = rank_;
    PublisherTools tools;
    tools.clock = &world().clock();
    tools.random = &random_;
    tools.kernels = &oracle_.kernels();
    tools.pool = &oracle_.pool();
    return Publisher::Open(std::move(run), std::move(options), tools, generation_->start.value_or(""));
  };
  auto opened = open();
  if (dead()) return;
  if (!opened.ok()) {
    world().Trace(fmt::format("{} cannot open: {}", name(), opened.error().message()));
    generation_->cannot_start = true;
    return;
  }
  publisher_ = std::move(opened).value();
  if (rank_ == 0) {
    generation_->start = publisher_->start();
    generation_->book->SetWriter(publisher_->writer());
  }
  ++generation_->open_ranks;
  world().Trace(fmt::format("{} is open", name()));
}

void RankMachine::Train() {
  if (generation_->cannot_start) return Wait();
  if (publisher_ == nullptr) return Open();
  if (!generation_->IsOpen()) return Wait();
  if (world().faults() && stalled_until_.has_value() && Now() < *stalled_until_) return Wait();
  stalled_until_.reset();
  if (draft_.has_value()) {
    if (generation_->fault == PublisherFault::kEpochIgnored) draft_->epoch = publisher_->Admit().epoch;
    return EndCall(publisher_->Enqueue(*std::exchange(draft_, std::nullopt)));
  }
  if (admission_.has_value()) return Make();
  BeginCall();
}

void RankMachine::BeginCall() {
  if (!intent_.has_value()) {
    if (HasMadeItsCalls() || Now() < not_before_) return Wait();
    const auto happens = [&](std::uint64_t one_in) { return world().faults() && random_.Below(one_in) == 0; };
    const CallBook::Call& call = generation_->book->At(call_);
    intent_ = Intent{call.step, {}, call.weights, happens(kWritesWhileRead)};
    if (happens(kRefuses)) intent_->refusal = Error(ErrorCode::kInvalidArgument, "the model is not there");
    if (ranks() > 1 && happens(kMeansAnotherStep)) intent_->step += 1000 + rank_;
    if (ranks() > 1 && happens(kMeansAnotherLayout)) {
      intent_->weights = std::make_shared<const Weights>(WithTensorOf(rank_, *call.weights));
    }
    if (happens(kStalls)) {
      stalled_until_ = Now() + kStallInDeadlines * generation_->deadline();
      world().Trace(name() + " computes for long");
      return;
    }
  }
  const Admission admission = publisher_->Admit();
  if (admission.stopped.has_value()) return Wait();
  if (admission.disconnected.has_value() || intent_->refusal.has_value()) {
    return EndCall(publisher_->Refuse(
        intent_->step, admission.disconnected.has_value() ? *admission.disconnected : *intent_->refusal));
  }
  if (admission.full || (alone_ && !admission.empty)) return Wait();
  admission_ = admission;
  if (generation_->fault == PublisherFault::kNoRollBack && admission.newest_serial.has_value()) {
    admission_->newest_serial = std::max(*admission.newest_serial, made_serial_.value_or(0));
  }
}

void RankMachine::Make() {
  const Holding holding = Hold(intent_->weights->layout, intent_->weights->tensors, rank_, ranks());
  StateBits bits = holding.Bits();
  if (intent_->changes_meanwhile) {
    bits.unchanged = [] { return Error(ErrorCode::kInvalidArgument, "the weights were changed meanwhile"); };
  }
  auto made = publisher_->Make(bits, intent_->step, *admission_);
  if (dead()) return;
  const Admission admission = *std::exchange(admission_, std::nullopt);
  if (!made.ok()) {
    world().Trace(fmt::format("{} cannot publish: {}", name(), made.error().message()));
    return EndCall(publisher_->Refuse(intent_->step, made.error()));
  }
  alone_ = true;
  if (!made.value().has_value()) return Wait();
  CheckDraft(*made.value(), admission, *intent_->weights);
  made_serial_ = made.value()->serial;
  draft_ = *std::move(made).value();
}

void RankMachine::CheckDraft(const Draft& draft, const Admission& admission, const Weights& given) {
  if (draft.error.has_value()) return;
  const auto digests = [&](const Weights& weights) {
    const Holding holding = Hold(weights.layout, weights.tensors, rank_, ranks());
    return DigestShards(*holding.shards, holding.Bits().tensors, oracle_.kernels(), oracle_.pool());
  };
  const auto wrong = [&](std::string_view what) {
    world().Violation(fmt::format("call {} of {} {}", call_, name(), what));
  };
  if (draft.after != digests(given)) wrong("made something else than it was given");
  if (!draft.whole && admission.empty) {
    const Version newest = admission.newest->record.version;
    if (newest >= oracle_.version_count()) return wrong("goes on from a version that is not there");
    if (draft.before != digests(oracle_.weights(newest))) wrong("does not begin at the newest version it knows of");
  } else if (!draft.whole && draft.before != made_[*admission.newest_serial]) {
    wrong("does not begin where the call before it ended");
  }
  made_[draft.serial] = draft.after;
}

void RankMachine::EndCall(Ticket ticket) {
  world().Trace(fmt::format("{} makes call {}", name(), call_));
  asked_.push_back({call_, std::move(ticket), Now()});
  ++call_;
  alone_ = false;
  intent_.reset();
  Look();
}

// --- its threads ---

void RankMachine::Work(Lane lane) {
  if (publisher_ == nullptr) return Wait();
  static_cast<void>(publisher_->Tick());
  Look();
  auto job = publisher_->Next(lane);
  if (!job.has_value()) {
    const auto due = publisher_->Due(lane);
    if (due.has_value() && *due <= Now()) {
      world().Violation(
          fmt::format("lane {} of {} has nothing to do, but does not wait", static_cast<int>(lane), name()));
    }
    return Wait();
  }
  publisher_->Execute(*job);
  if (dead()) return;
  Tamper(*job);
  publisher_->Finish(*std::move(job));
  Look();
}

void RankMachine::Tamper(Job& job) const {
  auto* commit = std::get_if<CommitJob>(&job);
  if (commit == nullptr || commit->outcome != CommitJob::Outcome::kError) return;
  if (generation_->fault == PublisherFault::kVerdictBeforeRecord) commit->outcome = CommitJob::Outcome::kCommitted;
  if (generation_->fault == PublisherFault::kDeadlineFailsSentRecord) commit->record_sent = false;
}

bool RankMachine::DiesNow() {
  if (generation_ == nullptr || !generation_->death.has_value() || generation_->death->rank != rank_) return false;
  if (effects_++ != generation_->death->effect) return false;
  world().Saw("a rank is killed");
  return true;
}

bool RankMachine::FindBoardAgain() {
  const Status connected = client_->Connect();
  if (dead()) return false;
  if (!connected.ok()) {
    if (!publisher_->disconnected().has_value()) publisher_->SetDisconnected(connected.error());
  } else if (publisher_->disconnected().has_value()) {
    publisher_->SetConnected();
  }
  Look();
  return connected.ok();
}

void RankMachine::Pump() {
  if (publisher_ == nullptr || client_->IsStalled()) return Wait();
  if (client_->IsBroken() && !FindBoardAgain()) return Wait();
  if (dead()) return;
  if (errands_.empty()) {
    for (BoardMessage& message : std::exchange(publisher_->outbox().outgoing, {})) {
      errands_.push_back({Errand::What::kPut, std::move(message.key), std::move(message.text), false});
    }
    for (std::string& key : publisher_->Wanted()) errands_.push_back({Errand::What::kFind, std::move(key), {}, false});
    for (std::string& key : std::exchange(publisher_->outbox().unneeded, {}))
      errands_.push_back({Errand::What::kRemove, std::move(key), {}, false});
  }
  bool moved = false;
  while (!errands_.empty()) {
    const Errand& errand = errands_.front();
    std::optional<std::string> found;
    const auto run = [&]() -> Status {
      if (errand.what == Errand::What::kPut) return client_->Put(errand.key, errand.text, errand.again);
      if (errand.what == Errand::What::kRemove) return client_->Remove(errand.key);
      WW_TRY(found, client_->Find(errand.key));
      if (forger_.has_value()) found = forger_->Hear(errand.key, std::move(found));
      return Ok();
    };
    const Status done = run();
    if (dead()) return;
    if (!done.ok()) {
      // What may not have been said is said again, once there is a way.
      std::erase_if(errands_, [](const Errand& one) { return one.what == Errand::What::kFind; });
      for (Errand& one : errands_) one.again = true;
      return;
    }
    if (client_->IsStalled()) return;
    if (found.has_value()) publisher_->Deliver(errand.key, *found);
    moved = moved || found.has_value() || errand.what == Errand::What::kPut;
    errands_.pop_front();
    Look();
  }
  if (!moved) Wait();
}

}  // namespace weightwire::sim
