#include "follow/follower.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/failure_policy.h"
#include "codec/digest/state.h"

namespace weightwire {

Follower::Follower(Run run, Target& target, const Id& id, FollowerOptions options, const FollowerTools& tools)
    : run_(std::move(run)),
      target_(target),
      options_(std::move(options)),
      tools_(tools),
      lease_(run_, id, {options_.keep_lease, options_.name, options_.lease_seconds}, *tools.clock),
      deltas_(run_, options_.fetch_threads),
      staged_(target),
      lag_(*tools.clock) {}

Result<FollowerStep> Follower::Step() {
  WW_TRY(const bool recovered, target_.Recover());
  if (recovered) Restart();
  if (phase_ != Phase::kStart && lease_.IsDue(held_version())) return RenewLease();
  switch (phase_) {
    case Phase::kStart:
      return Start();
    case Phase::kFindNext:
      return FindNext();
    case Phase::kPlan:
      return Plan();
    case Phase::kLeaseFirst:
      return RenewLease();
    case Phase::kBeginLoad:
      return BeginLoad();
    case Phase::kLoad:
      return Load();
    case Phase::kFetch:
      return Fetch();
    case Phase::kStage:
      return Stage();
    case Phase::kApply:
      return ApplyStaged();
    case Phase::kMaintain:
      break;
  }
  return Maintain();
}

// --- starting ---

Result<FollowerStep> Follower::Start() {
  if (const auto& held = target_.held(); held.has_value()) {
    if (held->run != run_.id()) {
      return Error(ErrorCode::kMismatch,
                   fmt::format("the target follows another run than the one at {}: give it its own, or an empty target",
                               run_.store().Name()));
    }
    WW_TRY(auto record, run_.ReadRecord(held->version));
    if (!record.has_value() || record->hash != held->record_hash) {
      return Error(ErrorCode::kMismatch, fmt::format("version {} that the target holds is not the one at {}",
                                                     held->version, run_.store().Name()));
    }
    SetHeld(*std::move(record));
  }
  phase_ = Phase::kFindNext;
  return std::exchange(moved_by_recovery_, false) ? FollowerStep::kApply : FollowerStep::kStarted;
}

void Follower::Restart() {
  const auto& now = target_.held();
  const bool is_same = held_record_.has_value() && now == HeldOf(*held_record_);
  if (now.has_value() && !is_same) moved_by_recovery_ = true;
  DropPlan();
  staged_.Clear();
  held_record_.reset();
  phase_ = Phase::kStart;
}

void Follower::SetHeld(KnownRecord record) {
  const Version version = record.record.version;
  held_record_ = std::move(record);
  staged_.Clear();
  lag_.SetHeld(version);
  // A path from here needs no earlier delta.
  unusable_.deltas.erase(unusable_.deltas.begin(), unusable_.deltas.upper_bound(version));
  if (unusable_.deltas.empty() && unusable_.anchors.empty()) unusable_because_.reset();
}

// --- finding versions and planning ---

const KnownRecord* Follower::Last() const {
  if (!staged_.empty()) return &staged_.last();
  return held_record_.has_value() ? &*held_record_ : nullptr;
}

std::optional<Version> Follower::held_version() const {
  return held_record_.has_value() ? std::optional(held_record_->record.version) : std::nullopt;
}

Result<std::optional<KnownRecord>> Follower::FindNewestAllowed(std::optional<Version> known) const {
  WW_TRY(auto newest, run_.FindNewest(known));
  if (!newest.has_value() || !pin_.has_value() || newest->record.version <= *pin_) return newest;
  return run_.ReadRecord(*pin_);
}

Result<FollowerStep> Follower::FindNext() {
  const KnownRecord* last = Last();
  if (last == nullptr || (go_back_ && held_version() > *pin_)) return FindGoal();
  const Version version = last->record.version;
  lag_.AddSeen(version);
  if (!IsBelowPin(version)) return NothingNewer();
  WW_TRY(auto next, run_.ReadRecord(version + 1));
  if (!next.has_value()) return NothingNewer();
  WW_RETURN_IF_ERROR(CheckFollows(*last, *next));
  lag_.AddSeen(version + 1);
  const bool is_planned = goal_.has_value() && goal_->record.version > version;
  if (!is_planned) {
    // Usually it is the newest version. Otherwise an anchor may be cheaper than all the deltas.
    std::optional<KnownRecord> after;
    if (IsBelowPin(version + 1)) {
      WW_TRY(after, run_.ReadRecord(version + 2));
    }
    if (after.has_value()) {
      WW_TRY(auto newest, FindNewestAllowed(version + 2));
      if (!newest.has_value()) return Corrupt(fmt::format("the record of version {} is missing", *pin_));
      return PlanFor(*std::move(newest));
    }
    goal_ = *next;
  }
  const Avoid avoid = AvoidNow();
  if (!next->record.delta.has_value() || !avoid.Allows(version, version + 1)) return PlanFor(KnownRecord(*goal_));
  deltas_.Push(*std::move(next));
  if (is_planned) deltas_.ReadAhead(std::min(pin_.value_or(goal_->record.version), goal_->record.version), avoid);
  phase_ = NextPhase();
  return FollowerStep::kRecord;
}

// There is nothing to build on: the goal is the pinned version. Until that exists, it is the newest one.
Result<FollowerStep> Follower::FindGoal() {
  std::optional<KnownRecord> goal;
  if (pin_.has_value()) {
    WW_TRY(goal, run_.ReadRecord(*pin_));
  }
  if (!goal.has_value() && !go_back_) {
    WW_TRY(goal, FindNewestAllowed(std::nullopt));
  }
  return goal.has_value() ? PlanFor(*std::move(goal)) : NothingNewer();
}

FollowerStep Follower::NothingNewer() {
  phase_ = options_.apply_at_once && !staged_.empty() ? Phase::kApply : Phase::kMaintain;
  return FollowerStep::kNothingNewer;
}

FollowerStep Follower::PlanFor(KnownRecord goal) {
  lag_.AddSeen(goal.record.version);
  goal_ = std::move(goal);
  phase_ = Phase::kPlan;
  return FollowerStep::kRecord;
}

Result<FollowerStep> Follower::Plan() {
  // Staged versions cost no more bytes, so they count as held.
  const KnownRecord* last = has_foreign_writes_ ? nullptr : Last();
  std::optional<DeltaStart> held;
  if (last != nullptr && last->record.version <= goal_->record.version) {
    held = DeltaStart{last->record.version, last->record.delta_bytes};
  }
  anchor_.reset();
  auto plan = PlanFetch(run_, goal_->record, held, AvoidNow());
  if (!plan.ok()) {
    // Next time everything is examined again: a newer version may have an anchor, or the store may have recovered.
    phase_ = Phase::kFindNext;
    goal_.reset();
    unusable_ = {};
    const std::optional<Error> because = unusable_because_;
    if (!has_foreign_writes_) unusable_because_.reset();
    if (plan.error().code() != ErrorCode::kNotFound || !because.has_value()) return plan.error();
    const bool is_damage = because->code() != ErrorCode::kNotFound;
    return Error(is_damage ? ErrorCode::kCorrupt : ErrorCode::kNotFound,
                 fmt::format("{} ({})", plan.error().message(), because->message()));
  }
  anchor_ = std::move(plan.value().anchor);
  if (!anchor_.has_value()) {
    phase_ = Phase::kFindNext;
  } else {
    phase_ = lease_.Protects(anchor_->manifest.name) ? Phase::kBeginLoad : Phase::kLeaseFirst;
  }
  return FollowerStep::kPlan;
}

void Follower::DropPlan() {
  goal_.reset();
  anchor_.reset();
  load_ = nullptr;
  deltas_.Clear();
  failed_attempts_ = 0;
}

Avoid Follower::AvoidNow() const {
  Avoid avoid = unusable_;
  const Avoid& marked = lease_.marked();
  avoid.anchors.insert(marked.anchors.begin(), marked.anchors.end());
  avoid.deltas.insert(marked.deltas.begin(), marked.deltas.end());
  return avoid;
}

// --- the lease ---

Result<FollowerStep> Follower::RenewLease() {
  LeaseNeeds needs{.holds = held_version()};
  if (anchor_.has_value()) needs.anchor = anchor_->manifest.name;
  WW_RETURN_IF_ERROR(lease_.Renew(needs));
  if (phase_ == Phase::kLeaseFirst) phase_ = Phase::kPlan;
  return FollowerStep::kLease;
}

Status Follower::KeepLease() {
  if (phase_ != Phase::kStart && lease_.IsDue(held_version())) WW_RETURN_IF_ERROR(RenewLease());
  return Ok();
}

// --- anchors ---

Result<FollowerStep> Follower::BeginLoad() {
  const AnchorManifest& manifest = anchor_->manifest;
  WW_TRY(auto record, run_.ReadRecord(manifest.name.version));
  if (!record.has_value() || record->record.state != manifest.state || record->record.layout != manifest.layout ||
      Contradicts(record->record, *anchor_)) {
    return AvoidAnchor(
        Corrupt(fmt::format("the anchor of version {} is not what its record says", manifest.name.version)));
  }
  WW_TRY(Layout layout, run_.ReadLayout(manifest.layout));
  WW_TRY(load_, AnchorLoad::Begin(run_, *anchor_, *std::move(record), std::make_shared<const Layout>(std::move(layout)),
                                  target_, *tools_.pool));
  staged_.Clear();
  phase_ = Phase::kLoad;
  return FollowerStep::kPlan;
}

Result<FollowerStep> Follower::Load() {
  if (load_->IsComplete()) return CommitLoad();
  WW_TRY(const LoadedPiece piece, load_->LoadPiece());
  counters_.bytes_fetched += piece.bytes;
  if (piece.completes_object) failed_attempts_ = 0;
  if (piece.lost.has_value() && !MayFetchAgain(*piece.lost)) return AvoidAnchor(*piece.lost);
  return FollowerStep::kLoad;
}

Result<FollowerStep> Follower::CommitLoad() {
  const Status committed = load_->Commit();
  if (!committed.ok()) {
    if (committed.error().code() != ErrorCode::kCorrupt) return committed.error();
    return AvoidAnchor(committed.error());
  }
  SetHeld(load_->record());
  has_foreign_writes_ = false;
  load_ = nullptr;
  anchor_.reset();
  ++counters_.anchors_loaded;
  phase_ = NextPhase();
  return FollowerStep::kApply;
}

bool Follower::MayFetchAgain(const Error& lost) {
  if (lost.code() == ErrorCode::kNotFound || ++failed_attempts_ >= options_.fetch_attempts) return false;
  ++counters_.objects_fetched_again;
  return true;
}

FollowerStep Follower::AvoidAnchor(const Error& why) {
  unusable_.anchors.insert(anchor_->manifest.name);
  return PlanAgain(why);
}

FollowerStep Follower::AvoidDelta(Version version, const Error& why) {
  unusable_.deltas.insert(version);
  const FollowerStep step = PlanAgain(why);
  // Staged versions lead closer to the goal, so they are applied first.
  if (options_.apply_at_once && !staged_.empty()) phase_ = Phase::kApply;
  return step;
}

FollowerStep Follower::PlanAgain(const Error& why) {
  if (!unusable_because_.has_value()) unusable_because_ = why;
  ++counters_.detours;
  std::optional<KnownRecord> goal = std::move(goal_);
  DropPlan();
  goal_ = std::move(goal);
  phase_ = Phase::kPlan;
  return FollowerStep::kDetour;
}

// --- deltas ---

Result<FollowerStep> Follower::Fetch() {
  const Version version = deltas_.first().record.version;
  if (const std::string& key = deltas_.NextPart().key; lease_.IsMarked(key)) {
    return AvoidDelta(version, Error(ErrorCode::kNotFound, fmt::format("gc is removing {}", key)));
  }
  const auto fetched = deltas_.FetchParts(lease_);
  if (!fetched.ok()) {
    const Error& error = fetched.error();
    if (ReactionTo(error) != Reaction::kFetchAgain) return error;
    if (!MayFetchAgain(error)) return AvoidDelta(version, error);
    return FollowerStep::kFetch;
  }
  failed_attempts_ = 0;
  counters_.bytes_fetched += fetched.value();
  phase_ = NextPhase();
  return FollowerStep::kFetch;
}

Result<FollowerStep> Follower::Stage() {
  const Record& record = deltas_.first().record;
  const Version version = record.version;
  const Sha256Digest& before = Last()->record.state;
  WW_TRY(const StateView* const view, staged_.View());
  auto change = DecodeVersion(record, before, deltas_.parts(), *view, *tools_.kernels, *tools_.pool);
  if (!change.ok()) {
    const Error& error = change.error();
    // A path around a delta in a newer format would hide from the operator that weightwire must be updated.
    if (IsRetryable(error) || error.code() == ErrorCode::kUnsupported) return error;
    // The bytes are those that the record names. So either the delta was made wrong, or the target has changed.
    WW_TRY(const std::optional<Error> foreign_write, FindForeignWrite());
    if (!foreign_write.has_value()) {
      return AvoidDelta(version, error.In(fmt::format("the delta of version {}", version)));
    }
    has_foreign_writes_ = true;
    staged_.Clear();
    unusable_because_ = foreign_write;
    return PlanAgain(*foreign_write);
  }
  staged_.Push(deltas_.Pop(), std::move(change).value());
  phase_ = NextPhase();
  return FollowerStep::kStage;
}

Result<std::optional<Error>> Follower::FindForeignWrite() {
  WW_TRY(const StateView view, target_.View());
  std::vector<std::span<const std::uint8_t>> tensors;
  for (std::size_t i = 0; i < view.layout().size(); ++i) tensors.push_back(view.InPlace(i));
  if (DigestTensors(tensors, *tools_.kernels, *tools_.pool) == view.digests()) return std::optional<Error>();
  return std::optional(Error(ErrorCode::kMismatch,
                             fmt::format("the target does not hold version {} any more: something else has written to "
                                         "it",
                                         held_record_->record.version)));
}

bool Follower::IsTooFarAhead() const {
  if (staged_.empty()) return false;
  return staged_.last().record.delta_bytes - held_record_->record.delta_bytes > options_.ahead_bytes;
}

Follower::Phase Follower::NextPhase() const {
  if (IsTooFarAhead()) return options_.apply_at_once ? Phase::kApply : Phase::kMaintain;
  if (options_.apply_at_once && options_.every_version && !staged_.empty()) return Phase::kApply;
  if (deltas_.empty()) return Phase::kFindNext;
  return deltas_.IsFetched() ? Phase::kStage : Phase::kFetch;
}

// --- the target ---

Result<FollowerStep> Follower::ApplyStaged() {
  WW_RETURN_IF_ERROR(Apply());
  phase_ = NextPhase();
  return FollowerStep::kApply;
}

Result<FollowerStep> Follower::Maintain() {
  phase_ = NextPhase();
  WW_TRY(const bool has_worked, target_.RunMaintenance());
  return has_worked ? FollowerStep::kMaintenance : FollowerStep::kUpToDate;
}

Status Follower::Apply() {
  WW_CHECK(HasStaged());
  KnownRecord record = staged_.last();
  WW_RETURN_IF_ERROR(target_.Apply(staged_.Combined(), HeldOf(record)));
  counters_.versions_applied += staged_.count();
  SetHeld(std::move(record));
  if (phase_ == Phase::kMaintain) phase_ = NextPhase();  // it waited for this
  return Ok();
}

Status Follower::Undo() {
  WW_RETURN_IF_ERROR(target_.Undo());
  Pin(target_.held()->version);
  // The next step reads the record of that version. Undo succeeds even if that will fail.
  Restart();
  moved_by_recovery_ = false;  // the caller knows
  return Ok();
}

void Follower::Pin(std::optional<Version> at, bool back) {
  pin_ = at;
  go_back_ = back && at.has_value();
  deltas_.Clear();
  failed_attempts_ = 0;
  if (at.has_value()) staged_.DropAfter(*at);
  const bool exceeds_pin = goal_.has_value() && at.has_value() && goal_->record.version > *at;
  if (exceeds_pin) DropPlan();
  const bool is_by_anchor =
      phase_ == Phase::kPlan || phase_ == Phase::kLeaseFirst || phase_ == Phase::kBeginLoad || phase_ == Phase::kLoad;
  if (phase_ == Phase::kStart || (is_by_anchor && !exceeds_pin)) return;
  phase_ = Phase::kFindNext;
}

// --- status ---

FollowerStatus Follower::status() const {
  FollowerStatus status = counters_;
  if (const auto& held = target_.held(); held.has_value()) {
    status.held = held->version;
    status.held_step = held->step;
  }
  status.staged = staged_.empty() ? status.held : std::optional(staged_.last().record.version);
  status.newest = lag_.newest();
  status.behind = lag_.behind();
  status.has_lease = lease_.IsAlive();
  if (lease_.error().has_value()) status.lease_error = lease_.error()->message();
  if (load_ != nullptr) {
    status.waits_for = fmt::format("the anchor of version {}", load_->name().version);
  } else if (!deltas_.empty()) {
    status.waits_for = fmt::format("the delta of version {}", deltas_.first().record.version);
  } else if (!staged_.empty() && !options_.apply_at_once) {
    status.waits_for = "being told to apply";
  } else if (status.held.has_value() && !IsBelowPin(*status.held)) {
    status.waits_for = fmt::format("nothing: it is pinned to version {}", *status.held);
  } else {
    status.waits_for = status.held.has_value() ? fmt::format("version {}", *status.held + 1) : "the first version";
  }
  return status;
}

}  // namespace weightwire
