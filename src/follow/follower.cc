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
      staged_(target, *tools.pool),
      lag_(*tools.clock) {}

Result<FollowerStep> Follower::Step() {
  Result<FollowerStep> step = DoPhase();
  // Now nothing more is staged for a while, and the caller may want to apply it.
  if (!step.ok() || phase_ == Phase::kApply || phase_ == Phase::kMaintain) staged_.Combine();
  return step;
}

Result<FollowerStep> Follower::DoPhase() {
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
  foreign_write_.reset();
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

Result<std::optional<KnownRecord>> Follower::FindNewestAllowed(std::optional<Version> known) {
  // Versions beyond the last one allowed are not read, because they may need a newer weightwire.
  if (const std::optional<Version> last = LastAllowed(); last.has_value()) {
    WW_TRY(auto allowed, run_.ReadRecord(*last));
    if (allowed.has_value()) return allowed;
  }
  return run_.FindNewest(known);
}

std::optional<Version> Follower::LastAllowed() const {
  if (!pin_.has_value() || !limit_.has_value()) return pin_.has_value() ? pin_ : limit_;
  return std::min(*pin_, *limit_);
}

Status Follower::LookBeyond() {
  const auto newest = run_.FindNewest(lag_.newest());
  // A record that cannot be read concerns only followers that want its version.
  if (!newest.ok()) return IsTransient(newest.error()) ? Status(newest.error()) : Ok();
  if (newest.value().has_value()) lag_.AddSeen(newest.value()->record.version);
  return Ok();
}

Result<FollowerStep> Follower::FindNext() {
  const KnownRecord* last = Last();
  if (last == nullptr || (MustGoBack() && staged_.load() == nullptr)) return FindGoal();
  const Version version = last->record.version;
  lag_.AddSeen(version);
  if (!MayGoBeyond(version)) {
    WW_RETURN_IF_ERROR(LookBeyond());
    return NothingNewer();
  }
  WW_TRY(auto next, run_.ReadRecord(version + 1));
  if (!next.has_value()) return NothingNewer();
  WW_RETURN_IF_ERROR(CheckFollows(*last, *next));
  lag_.AddSeen(version + 1);
  const bool is_planned = goal_.has_value() && goal_->record.version > version;
  if (!is_planned) {
    // Usually it is the newest version. Otherwise an anchor may be cheaper than all the deltas.
    std::optional<KnownRecord> after;
    if (MayGoBeyond(version + 1)) {
      WW_TRY(after, run_.ReadRecord(version + 2));
    }
    goal_ = *next;
    if (after.has_value()) {
      WW_TRY(auto newest, FindNewestAllowed(version + 2));
      if (!newest.has_value()) return Corrupt(fmt::format("the record of version {} is missing", *LastAllowed()));
      // An anchor would skip versions.
      if (!options_.every_version) return PlanFor(*std::move(newest));
      lag_.AddSeen(newest->record.version);
      goal_ = *std::move(newest);
    }
  }
  const Avoid avoid = AvoidNow();
  if (!next->record.delta.has_value() || !avoid.Allows(version, version + 1)) {
    return PlanFor(options_.every_version ? *std::move(next) : KnownRecord(*goal_));
  }
  deltas_.Push(*std::move(next));
  if (is_planned) {
    const Version newest = goal_->record.version;
    deltas_.ReadAhead(std::min(LastAllowed().value_or(newest), newest), avoid);
  }
  phase_ = NextPhase();
  return FollowerStep::kRecord;
}

// There is nothing to build on: the goal is the last version allowed. Until that exists, it is the newest one.
Result<FollowerStep> Follower::FindGoal() {
  std::optional<KnownRecord> goal;
  if (const std::optional<Version> last = LastAllowed(); last.has_value()) {
    WW_TRY(goal, run_.ReadRecord(*last));
    if (!goal.has_value() && MustGoBack()) {
      return Error(ErrorCode::kNotFound, fmt::format("cannot go back to version {}: the run at {} has no record of it",
                                                     *last, run_.store().Name()));
    }
  }
  if (!goal.has_value()) {
    WW_TRY(goal, FindNewestAllowed(std::nullopt));
  }
  return goal.has_value() ? PlanFor(*std::move(goal)) : NothingNewer();
}

FollowerStep Follower::NothingNewer() {
  phase_ = IsApplyDue() ? Phase::kApply : Phase::kMaintain;
  return FollowerStep::kNothingNewer;
}

bool Follower::IsApplyDue() const {
  if (!options_.apply_at_once || staged_.empty()) return false;
  if (options_.max_lag == 0 || !held_record_.has_value() || IsTooFarAhead()) return true;
  return lag_.versions() > options_.max_lag || !MayGoBeyond(staged_.last().record.version);
}

FollowerStep Follower::PlanFor(KnownRecord goal) {
  lag_.AddSeen(goal.record.version);
  goal_ = std::move(goal);
  phase_ = Phase::kPlan;
  return FollowerStep::kRecord;
}

Result<FollowerStep> Follower::Plan() {
  // Staged versions cost no more bytes, so they count as held.
  const KnownRecord* last = Last();
  std::optional<DeltaStart> held;
  if (last != nullptr && last->record.version <= goal_->record.version) {
    held = DeltaStart{last->record.version, last->record.delta_bytes};
  }
  anchor_.reset();
  auto plan = PlanFetch(run_, goal_->record, held, AvoidNow());
  if (!plan.ok()) {
    const bool is_next = last != nullptr && goal_->record.version == last->record.version + 1;
    if (options_.every_version && is_next && !MaySucceedLater(plan.error())) {
      // That version cannot be had any longer, but the newest may be.
      WW_TRY(auto newest, FindNewestAllowed(goal_->record.version));
      if (newest.has_value() && newest->record.version > goal_->record.version) return PlanFor(*std::move(newest));
    }
    // Next time everything is examined again: a newer version may have an anchor, or the store may have recovered.
    phase_ = Phase::kFindNext;
    goal_.reset();
    unusable_ = {};
    const std::optional<Error> because = foreign_write_.has_value() ? foreign_write_ : unusable_because_;
    unusable_because_.reset();
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
  if (staged_.load() != nullptr) needs.loaded = staged_.load()->record().record.version;
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
  if (!record.has_value() || !HasStateOf(record->record, *anchor_) || Contradicts(record->record, *anchor_)) {
    return AvoidAnchor(
        Corrupt(fmt::format("the anchor of version {} is not what its record says", manifest.name.version)));
  }
  WW_TRY(Layout layout, run_.ReadLayout(manifest.layout));
  if (staged_.load() != nullptr) staged_.Clear();  // a target has one load at a time
  WW_TRY(load_, AnchorLoad::Begin(run_, *anchor_, *std::move(record), std::make_shared<const Layout>(std::move(layout)),
                                  target_, *tools_.pool));
  staged_.Clear();
  phase_ = Phase::kLoad;
  return FollowerStep::kPlan;
}

Result<FollowerStep> Follower::Load() {
  if (load_->IsComplete()) return FinishLoad();
  WW_TRY(const LoadedPortion portion, load_->LoadPortion());
  counters_.bytes_fetched += portion.bytes;
  if (portion.completes_object) failed_attempts_ = 0;
  if (portion.lost.has_value() && !MayFetchAgain(*portion.lost)) return AvoidAnchor(*portion.lost);
  return FollowerStep::kLoad;
}

Result<FollowerStep> Follower::FinishLoad() {
  // On the way back, the target skips the version of the anchor.
  const bool is_staged = !options_.apply_at_once || MustGoBack() || (options_.max_lag != 0 && held_record_.has_value());
  const Status done = is_staged ? load_->Prepare() : load_->Commit();
  if (!done.ok()) {
    if (done.error().code() != ErrorCode::kCorrupt) return done.error();
    return AvoidAnchor(done.error());
  }
  anchor_.reset();
  if (is_staged) {
    staged_.BeginWith(std::move(load_));
    phase_ = NextPhase();
    return FollowerStep::kStage;
  }
  SetHeld(load_->record());
  load_ = nullptr;
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
  if (staged_.empty() && target_.verifies_base()) {
    if (Status verified = target_.Verify(); !verified.ok()) return LoseHeld(verified.error());
  }
  WW_TRY(const StateView* const view, staged_.View());
  auto change = DecodeVersion(record, before, deltas_.parts(), *view, *tools_.kernels, *tools_.pool);
  if (!change.ok()) {
    const Error& error = change.error();
    // A path around a delta in a newer format would hide from the operator that weightwire must be updated.
    if (MaySucceedLater(error) || error.code() == ErrorCode::kUnsupported) return error;
    // The bytes are those that the record names. So either the delta was made wrong, or the target has changed.
    const Status verified = staged_.load() == nullptr ? target_.Verify() : Ok();
    if (verified.ok()) return AvoidDelta(version, error.In(fmt::format("the delta of version {}", version)));
    return LoseHeld(verified.error());
  }
  staged_.Push(deltas_.Pop(), std::move(change).value());
  phase_ = NextPhase();
  return FollowerStep::kStage;
}

Result<FollowerStep> Follower::LoseHeld(const Error& why) {
  if (target_.held().has_value()) return why;
  Restart();
  foreign_write_ = why;
  ++counters_.detours;
  return FollowerStep::kDetour;
}

bool Follower::IsTooFarAhead() const {
  if (staged_.empty()) return false;
  const KnownRecord& first = staged_.load() != nullptr ? staged_.load()->record() : *held_record_;
  return staged_.last().record.delta_bytes - first.record.delta_bytes > options_.ahead_bytes;
}

Follower::Phase Follower::NextPhase() const {
  const bool is_full = IsTooFarAhead() || (options_.every_version && !staged_.empty() && !MustGoBack());
  if (is_full) return IsApplyDue() ? Phase::kApply : Phase::kMaintain;
  if (deltas_.empty()) return Phase::kFindNext;
  return deltas_.IsFetched() ? Phase::kStage : Phase::kFetch;
}

// --- the target ---

Result<FollowerStep> Follower::ApplyStaged() {
  if (const Status applied = Apply(); !applied.ok()) {
    if (foreign_write_.has_value()) return FollowerStep::kDetour;
    return applied.error();
  }
  phase_ = NextPhase();
  return FollowerStep::kApply;
}

Result<FollowerStep> Follower::Maintain() {
  const Phase next = NextPhase();
  // It waits for Apply, and no other phase looks for versions.
  if (next == Phase::kMaintain) WW_RETURN_IF_ERROR(LookBeyond());
  phase_ = next == Phase::kMaintain && IsApplyDue() ? Phase::kApply : next;
  WW_TRY(const bool has_worked, target_.RunMaintenance());
  return has_worked ? FollowerStep::kMaintenance : FollowerStep::kUpToDate;
}

Status Follower::Apply() {
  WW_CHECK(HasStaged());
  const bool has_load = staged_.load() != nullptr;
  std::optional<KnownRecord> loaded;
  if (has_load) loaded = staged_.load()->record();
  if (Status written = staged_.WriteToTarget(); !written.ok()) {
    if (has_load && staged_.load() == nullptr) {
      ++counters_.anchors_loaded;
      SetHeld(*std::move(loaded));
    } else if (has_load && staged_.count() != 0 && written.error().code() == ErrorCode::kIo) {
      Restart();  // the changes may be in the load already
    } else if (held_record_.has_value() && !target_.held().has_value()) {
      static_cast<void>(LoseHeld(written.error()));
    }
    return written;
  }
  if (has_load) ++counters_.anchors_loaded;
  counters_.versions_applied += staged_.count();
  KnownRecord record = staged_.last();
  staged_.Clear();
  SetHeld(std::move(record));
  if (phase_ == Phase::kMaintain) phase_ = NextPhase();  // it waited for this
  return Ok();
}

Status Follower::Verify() {
  Status verified = target_.Verify();
  if (!verified.ok() && held_record_.has_value()) static_cast<void>(LoseHeld(verified.error()));
  return verified;
}

Status Follower::Undo() {
  if (Status undone = target_.Undo(); !undone.ok()) {
    if (held_record_.has_value()) static_cast<void>(LoseHeld(undone.error()));
    return undone;
  }
  pin_ = target_.held()->version;
  // The next step reads the record of that version. Undo succeeds even if that will fail.
  Restart();
  moved_by_recovery_ = false;  // the caller knows
  return Ok();
}

void Follower::SetLimits(std::optional<Version> pin, std::optional<Version> limit) {
  if (pin_ == pin && limit_ == limit) return;
  pin_ = pin;
  limit_ = limit;
  deltas_.Clear();
  failed_attempts_ = 0;
  if (!staged_.empty()) {
    // A load may lead back to an earlier pin.
    const bool is_stale = staged_.load() == nullptr ? MustGoBack() : !IsWanted(staged_.load()->record().record.version);
    if (is_stale) staged_.Clear();
    if (const std::optional<Version> last = LastAllowed(); last.has_value()) staged_.DropAfter(*last);
  }
  const bool is_unwanted = goal_.has_value() && !IsWanted(goal_->record.version);
  if (is_unwanted) DropPlan();
  const bool is_by_anchor =
      phase_ == Phase::kPlan || phase_ == Phase::kLeaseFirst || phase_ == Phase::kBeginLoad || phase_ == Phase::kLoad;
  if (phase_ == Phase::kStart || (is_by_anchor && !is_unwanted)) return;
  phase_ = Phase::kFindNext;
}

bool Follower::IsWanted(Version goal) const {
  if (MayGoBeyond(goal)) return !MustGoBack() && goal >= held_version().value_or(0);
  return goal == LastAllowed();
}

// --- status ---

FollowerStatus Follower::status() const {
  FollowerStatus status = counters_;
  if (const auto& held = target_.held(); held.has_value()) {
    status.held = held->version;
    status.held_step = held->step;
  }
  if (!staged_.empty()) status.staged = staged_.last().record.version;
  status.pinned = pin_;
  status.newest = lag_.newest();
  if (status.held.has_value() && status.newest > status.held) status.lag = *status.newest - *status.held;
  status.behind = lag_.behind();
  status.has_lease = lease_.IsAlive();
  if (lease_.error().has_value()) status.lease_error = lease_.error()->message();
  if (foreign_write_.has_value()) status.last_error = foreign_write_->message();
  if (load_ != nullptr) {
    status.waits_for = fmt::format("the anchor of version {}", load_->name().version);
  } else if (!deltas_.empty()) {
    status.waits_for = fmt::format("the delta of version {}", deltas_.first().record.version);
  } else if (!staged_.empty() && !options_.apply_at_once) {
    status.waits_for = "the caller, who applies the update";
  } else if (!status.held.has_value() || MayGoBeyond(*status.held)) {
    status.waits_for = status.held.has_value() ? fmt::format("version {}", *status.held + 1) : "the first version";
  }
  return status;
}

}  // namespace weightwire
