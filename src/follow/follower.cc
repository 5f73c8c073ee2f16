#include "follow/follower.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/failure_policy.h"
#include "codec/decode/decoder.h"
#include "codec/digest/state.h"
#include "codec/format/delta_file.h"
#include "store/transfer.h"

namespace weightwire {
namespace {

// Small parts, or records, that are fetched at a time, for each of the threads that a large part would have: requests
// for them mostly wait. Together parts have no more bytes than this.
constexpr std::size_t kSmallPerThread = 4;
constexpr std::uint64_t kFetchTogetherBytes = std::uint64_t{32} << 20;
// So many staged changes become one: what is staged is looked through for every tile of the next, and there may be
// thousands of versions.
constexpr std::size_t kFoldAt = 16;
}  // namespace

Follower::Follower(Run run, Target& target, const Id& id, FollowerOptions options, const FollowerTools& tools)
    : run_(std::move(run)),
      target_(target),
      options_(std::move(options)),
      tools_(tools),
      lease_(run_, id, {options_.keep_lease, options_.name, options_.lease_seconds}, *tools.clock) {}

// --- what to do next ---

Result<FollowerStep> Follower::Step() {
  WW_TRY(const bool mended, target_.Recover());
  if (mended) BeginAnew();
  if (!started_) return Start();
  if (LeaseIsDue()) return RenewLease();
  if (load_ != nullptr) return Load();
  if (plan_again_) {
    plan_again_ = false;
    return Plan(KnownRecord(*newest_));
  }
  const bool too_far_ahead = !staged_.empty() && BytesAhead() > options_.ahead_bytes;
  const bool apply_now = options_.apply_at_once && !staged_.empty() && (options_.every_version || too_far_ahead);
  if (apply_now) {
    WW_RETURN_IF_ERROR(Apply());
    return FollowerStep::kApply;
  }
  if (!queue_.empty() && !too_far_ahead) {
    const Queued& next = queue_.front();
    return next.parts.size() < next.known.record.delta->size() ? Fetch() : Stage();
  }
  if (!too_far_ahead) {
    WW_TRY(const FollowerStep step, NextRecord());
    if (step != FollowerStep::kUpToDate) return step;
  }
  if (options_.apply_at_once && !staged_.empty()) {
    WW_RETURN_IF_ERROR(Apply());
    return FollowerStep::kApply;
  }
  WW_TRY(const bool busy, target_.RunMaintenance());
  return busy ? FollowerStep::kIdle : FollowerStep::kUpToDate;
}

Result<FollowerStep> Follower::Start() {
  const auto& held = target_.held();
  if (held.has_value()) {
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
    held_ = std::move(record);
    Forget();
  }
  started_ = true;
  return std::exchange(moved_, false) ? FollowerStep::kApply : FollowerStep::kRecord;
}

// From what the target holds now, which it may have come to by itself.
void Follower::BeginAnew() {
  const auto& now = target_.held();
  moved_ = moved_ || (now.has_value() && !(held_.has_value() && HeldOf(*held_) == *now));
  DropStaged();
  queue_.clear();
  load_ = nullptr;
  wanted_anchor_.reset();
  plan_again_ = false;
  newest_.reset();
  held_.reset();
  started_ = false;
}

// The last version queued, staged or held: what the next one must follow.
const KnownRecord* Follower::Top() const {
  if (!queue_.empty()) return &queue_.back().known;
  return Reached();
}

const KnownRecord* Follower::Reached() const {
  if (!staged_.empty()) return &staged_.back().known;
  return held_.has_value() ? &*held_ : nullptr;
}

Result<FollowerStep> Follower::NextRecord() {
  const KnownRecord* top = Top();
  if (top == nullptr || (go_back_ && held_->record.version > *stop_at_)) {
    // Nothing to build on: straight to the newest, or to the one asked for.
    std::optional<KnownRecord> goal;
    if (stop_at_.has_value()) {
      WW_TRY(goal, run_.ReadRecord(*stop_at_));
    }
    if (!goal.has_value() && !go_back_) {
      // What there is meanwhile; the one asked for may come.
      WW_TRY(goal, run_.FindNewest(std::nullopt));
      if (goal.has_value() && stop_at_.has_value() && goal->record.version > *stop_at_) return FollowerStep::kRecord;
    }
    if (!goal.has_value()) return FollowerStep::kUpToDate;
    return Plan(*goal);
  }
  const Version version = top->record.version;
  if (!MayGoBeyond(version)) return FollowerStep::kUpToDate;
  WW_TRY(auto next, run_.ReadRecord(version + 1));
  if (!next.has_value()) {
    newest_ = *top;
    return FollowerStep::kUpToDate;
  }
  WW_RETURN_IF_ERROR(CheckFollows(*top, *next));
  Saw(*next);
  const bool planned = newest_.has_value() && newest_->record.version > version;
  if (!planned) {
    // Is it the newest? Usually it is. Otherwise see how far behind we are, and whether an anchor would be cheaper.
    newest_ = *next;
    if (MayGoBeyond(version + 1)) {
      WW_TRY(auto after, run_.ReadRecord(version + 2));
      if (after.has_value()) {
        WW_TRY(auto newest, run_.FindNewest(version + 2));
        if (stop_at_.has_value() && newest->record.version > *stop_at_) {
          WW_TRY(newest, run_.ReadRecord(*stop_at_));
        }
        return Plan(*newest);
      }
    }
  }
  if (!next->record.delta.has_value() || !IsFree(version, version + 1)) return Plan(KnownRecord(*newest_));
  queue_.push_back({*std::move(next), {}, 0});
  if (planned) QueueAhead(newest_->record.version);
  return FollowerStep::kRecord;
}

// Records of the versions after the one queued, on the way to one that is known. What cannot be had now is asked for
// again, alone, when it is its turn, and its trouble is told then.
void Follower::QueueAhead(Version last) {
  if (options_.fetch_threads == 1) return;
  const Version first = queue_.back().known.record.version + 1;
  // With the one queued as many as parts are fetched at a time.
  const std::size_t at_most = kSmallPerThread * options_.fetch_threads - 1;
  if (first > last || !MayGoBeyond(first - 1)) return;
  const Version end = std::min(stop_at_.value_or(last), last) + 1;
  std::vector<std::optional<KnownRecord>> records(std::min<std::uint64_t>(end - first, at_most));
  ThreadPool requests(std::max<std::size_t>(1, records.size()));
  requests.ParallelFor(records.size(), [&](std::size_t i, std::size_t) {
    if (auto record = run_.ReadRecord(first + i); record.ok()) records[i] = std::move(record).value();
  });
  for (std::optional<KnownRecord>& record : records) {
    const KnownRecord& before = queue_.back().known;
    if (!record.has_value() || !CheckFollows(before, *record).ok() || !record->record.delta.has_value() ||
        !IsFree(before.record.version, record->record.version)) {
      return;
    }
    queue_.push_back({*std::move(record), {}, 0});
  }
}

Result<FollowerStep> Follower::Plan(const KnownRecord& target) {
  newest_ = target;
  Saw(target);
  // What is staged already counts as held: it costs nothing more.
  const KnownRecord* top = target_changed_ ? nullptr : Reached();
  std::optional<HeldCost> held;
  if (top != nullptr && top->record.version <= target.record.version) {
    held = HeldCost{top->record.version, top->record.delta_bytes};
  }
  queue_.clear();
  auto planned = PlanFetch(run_, target.record, held, AvoidNow());
  if (!planned.ok()) {
    // Next time everything is looked at anew: a newer version may have an anchor, a store may have recovered.
    newest_.reset();
    gone_ = {};
    const std::optional<Error> why = gone_why_;
    if (!target_changed_) gone_why_.reset();
    if (planned.error().code() != ErrorCode::kNotFound || !why.has_value()) return planned.error();
    // Damage is another matter than what is not there.
    const bool damaged = why->code() != ErrorCode::kNotFound;
    return Error(damaged ? ErrorCode::kCorrupt : ErrorCode::kNotFound,
                 fmt::format("{} ({})", planned.error().message(), why->message()));
  }
  const FetchPlan& way = planned.value();
  if (!way.anchor.has_value()) {
    wanted_anchor_.reset();  // one that was wanted before has been marked or has gone meanwhile
    return FollowerStep::kPlan;
  }
  const AnchorManifest& manifest = way.anchor->manifest;
  wanted_anchor_ = manifest.name;
  if (!lease_.Protects(manifest.name)) {
    // First the lease that names the anchor, then the marks, then the plan again.
    plan_again_ = true;
    return RenewLease();
  }
  WW_TRY(auto record, run_.ReadRecord(manifest.name.version));
  if (!record.has_value() || record->record.state != manifest.state || record->record.layout != manifest.layout ||
      Contradicts(record->record, *way.anchor)) {
    return GiveUpAnchor(manifest.name,
                        Error(ErrorCode::kCorrupt, fmt::format("the anchor of version {} is not what its record says",
                                                               manifest.name.version)));
  }
  auto layout = run_.ReadLayout(manifest.layout);
  if (!layout.ok()) return layout.error();
  WW_TRY(load_, AnchorLoad::Begin(run_, *way.anchor, *std::move(record),
                                  std::make_shared<const Layout>(std::move(layout).value()), target_, *tools_.pool));
  load_attempts_ = 0;
  DropStaged();
  return FollowerStep::kPlan;
}

// --- the lease ---

bool Follower::LeaseIsDue() const {
  return lease_.IsDue(held_.has_value() ? std::optional(held_->record.version) : std::nullopt);
}

Result<FollowerStep> Follower::RenewLease() {
  LeaseNeeds needs;
  if (held_.has_value()) needs.holds = held_->record.version;
  needs.anchor = wanted_anchor_;
  WW_RETURN_IF_ERROR(lease_.Renew(needs));
  return FollowerStep::kLease;
}

Avoid Follower::AvoidNow() const {
  Avoid avoid = gone_;
  const Avoid& marked = lease_.marked();
  avoid.anchors.insert(marked.anchors.begin(), marked.anchors.end());
  avoid.deltas.insert(marked.deltas.begin(), marked.deltas.end());
  return avoid;
}

Status Follower::KeepLease() {
  if (started_ && LeaseIsDue()) WW_RETURN_IF_ERROR(RenewLease());
  return Ok();
}

// --- deltas ---

// The next part; and those after it, also of versions that come later, as far as they are small.
std::vector<Follower::WantedPart> Follower::PartsWanted() {
  std::vector<WantedPart> wanted;
  const std::size_t at_most = options_.fetch_threads == 1 ? 1 : kSmallPerThread * options_.fetch_threads;
  std::uint64_t bytes = 0;
  for (Queued& queued : queue_) {
    const std::vector<PartRef>& parts = *queued.known.record.delta;
    for (std::size_t i = queued.parts.size(); i < parts.size(); ++i) {
      bytes += parts[i].size_bytes;
      const bool fits = wanted.size() < at_most && bytes <= kFetchTogetherBytes && !lease_.IsMarked(parts[i].key);
      if (!wanted.empty() && !fits) return wanted;
      wanted.push_back({&queued, &parts[i], {}, Ok()});
    }
  }
  return wanted;
}

void Follower::FetchParts(std::span<WantedPart> wanted) const {
  TransferOptions transfer;
  transfer.threads = wanted.size() == 1 ? options_.fetch_threads : 1;
  ThreadPool requests(wanted.size());
  requests.ParallelFor(wanted.size(), [&](std::size_t i, std::size_t) {
    WantedPart& want = wanted[i];
    want.read = run_.CheckPartSize(*want.part);
    if (!want.read.ok()) return;
    want.bytes.resize(want.part->size_bytes);
    want.read = DownloadObject(run_.store(), want.part->key, want.part->hash, want.bytes, transfer);
  });
}

Result<FollowerStep> Follower::Fetch() {
  std::vector<WantedPart> wanted = PartsWanted();
  Queued& next = *wanted.front().of;
  const Version version = next.known.record.version;
  if (lease_.IsMarked(wanted.front().part->key)) {
    return GiveUpDelta(version,
                       Error(ErrorCode::kNotFound, fmt::format("gc is removing {}", wanted.front().part->key)));
  }
  FetchParts(wanted);
  for (WantedPart& want : wanted) {
    // Whatever is the matter with one that is not the first: it will be, the next time.
    if (!want.read.ok()) break;
    counters_.bytes_fetched += want.bytes.size();
    want.of->attempts = 0;
    want.of->parts.push_back(std::move(want.bytes));
  }
  const Status& read = wanted.front().read;
  if (read.ok()) return FollowerStep::kFetch;
  if (ReactionTo(read.error()) != Reaction::kFetchAgain) return read.error();
  if (read.error().code() == ErrorCode::kNotFound || ++next.attempts >= options_.fetch_attempts) {
    return GiveUpDelta(version, read.error());
  }
  ++counters_.objects_fetched_again;
  return FollowerStep::kFetch;
}

Result<FollowerStep> Follower::GiveUpDelta(Version version, const Error& why) {
  gone_.deltas.insert(version);
  if (!gone_why_.has_value()) gone_why_ = why;
  ++counters_.detours;
  queue_.clear();
  // What leads up to it is good, and nearer than what is held.
  if (options_.apply_at_once && !staged_.empty()) WW_RETURN_IF_ERROR(Apply());
  return Plan(KnownRecord(*newest_));
}

Result<FollowerStep> Follower::Stage() {
  Queued& next = queue_.front();
  const Record& record = next.known.record;
  WW_TRY(const StateView* const seen, ViewOfStaged());
  const StateView& view = *seen;
  const Sha256Digest before = staged_.empty() ? held_->record.state : staged_.back().known.record.state;
  std::vector<DeltaFile> files;
  const auto stage = [&]() -> Result<std::shared_ptr<const StagedChange>> {
    for (const auto& bytes : next.parts) {
      WW_TRY(DeltaFile file, DeltaFile::Parse(bytes));
      files.push_back(std::move(file));
    }
    if (files.size() == 1 && files.front().index().state.has_value()) {
      return StageDelta(files.front(), view, *tools_.kernels, *tools_.pool);
    }
    return StageParts(files, StateDigests{before, record.state}, view, *tools_.kernels, *tools_.pool);
  };
  // Something of the right hash that does not decode, or not to the promised state, will not get better.
  std::shared_ptr<const StagedChange> change;
  if (next.parts.empty()) {
    // The same state under another step.
    change = std::make_shared<const StagedChange>(StagedChange::Nothing(view.shared_layout(), view.digests()));
  } else {
    auto staged = stage();
    if (!staged.ok()) {
      const ErrorCode code = staged.error().code();
      const bool hopeless = code == ErrorCode::kCorrupt || code == ErrorCode::kMismatch || code == ErrorCode::kLimit;
      if (!hopeless) return staged.error();
      // The bytes are those that the record names, so either it was made wrong, or the target is not what it was.
      WW_TRY(const std::optional<Error> trouble, TargetTrouble());
      if (!trouble.has_value()) {
        return GiveUpDelta(record.version, staged.error().In(fmt::format("the delta of version {}", record.version)));
      }
      target_changed_ = true;
      DropStaged();
      gone_why_ = trouble;
      queue_.clear();
      ++counters_.detours;
      return Plan(KnownRecord(*newest_));
    }
    change = std::move(staged).value();
  }
  if (change->state_before() != before || change->state_after() != record.state ||
      change->layout_after().hash() != record.layout) {
    return GiveUpDelta(record.version, Error(ErrorCode::kCorrupt,
                                             fmt::format("the delta of version {} does not lead to what its record "
                                                         "says",
                                                         record.version)));
  }
  view_ = std::move(*view_).After(change);
  staged_.push_back({std::move(next.known), std::move(change)});
  queue_.pop_front();
  FoldStaged();
  return FollowerStep::kStage;
}

// Valid until something is staged, dropped or applied.
Result<const StateView*> Follower::ViewOfStaged() {
  if (!view_.has_value()) {
    WW_TRY(StateView view, target_.View());
    for (const StagedVersion& staged : staged_) view = std::move(view).After(staged.change);
    view_ = std::move(view);
  }
  return &*view_;
}

// Makes one change of the last ones as soon as there are kFoldAt of about the same number of versions: each version is
// folded a few times at most, however many there are.
void Follower::FoldStaged() {
  while (staged_.size() >= kFoldAt) {
    const auto first = staged_.end() - kFoldAt;
    if (first->versions != staged_.back().versions) return;
    std::vector<std::shared_ptr<const StagedChange>> changes;
    StagedVersion folded{std::move(staged_.back().known), nullptr, 0};
    for (auto at = first; at != staged_.end(); ++at) {
      changes.push_back(at->change);
      folded.versions += at->versions;
    }
    view_.reset();
    folded.change = StagedChange::Fold(changes);
    staged_.erase(first, staged_.end());
    staged_.push_back(std::move(folded));
  }
}

void Follower::DropStaged() {
  view_.reset();
  staged_.clear();
}

Result<std::optional<Error>> Follower::TargetTrouble() {
  WW_TRY(const StateView view, target_.View());
  std::vector<std::span<const std::uint8_t>> tensors;
  for (std::size_t i = 0; i < view.layout().size(); ++i) tensors.push_back(view.InPlace(i));
  if (DigestTensors(tensors, *tools_.kernels, *tools_.pool) == view.digests()) return std::optional<Error>();
  return std::optional(Error(ErrorCode::kMismatch,
                             fmt::format("the target does not hold version {} any more: something else has written to "
                                         "it",
                                         held_->record.version)));
}

std::uint64_t Follower::BytesAhead() const {
  return staged_.empty() ? 0 : staged_.back().known.record.delta_bytes - held_->record.delta_bytes;
}

std::shared_ptr<const StagedChange> Follower::Staged() const {
  WW_CHECK(!staged_.empty());
  if (staged_.size() == 1) return staged_.front().change;
  std::vector<std::shared_ptr<const StagedChange>> changes;
  for (const StagedVersion& staged : staged_) changes.push_back(staged.change);
  return StagedChange::Fold(changes);
}

Status Follower::Apply() {
  WW_CHECK(!staged_.empty());
  const KnownRecord& to = staged_.back().known;
  WW_RETURN_IF_ERROR(target_.Apply(Staged(), HeldOf(to)));
  for (const StagedVersion& staged : staged_) counters_.versions_applied += staged.versions;
  held_ = KnownRecord(to);
  Forget();
  return Ok();
}

Status Follower::Undo() {
  WW_RETURN_IF_ERROR(target_.Undo());
  StandStill(target_.held()->version);
  // The target has gone back, whatever comes of reading its record: the next step reads it, and again if that fails.
  BeginAnew();
  moved_ = false;  // the caller knows
  return Ok();
}

// What does not matter any more now that a newer version is held.
void Follower::Forget() {
  DropStaged();
  const Version version = held_->record.version;
  gone_.deltas.erase(gone_.deltas.begin(), gone_.deltas.upper_bound(version));
  if (gone_.deltas.empty() && gone_.anchors.empty()) gone_why_.reset();
  while (!seen_.empty() && seen_.front().first <= version) seen_.pop_front();
}

// --- anchors ---

Result<FollowerStep> Follower::Load() {
  if (load_->IsComplete()) return FinishLoad();
  WW_TRY(const LoadedPiece piece, load_->LoadPiece());
  counters_.bytes_fetched += piece.bytes;
  if (piece.completes_object) load_attempts_ = 0;
  if (!piece.lost.has_value()) return FollowerStep::kLoad;
  if (piece.lost->code() == ErrorCode::kNotFound || ++load_attempts_ >= options_.fetch_attempts) {
    return GiveUpAnchor(load_->name(), *piece.lost);
  }
  ++counters_.objects_fetched_again;
  return FollowerStep::kLoad;
}

Result<FollowerStep> Follower::FinishLoad() {
  const Status committed = load_->Commit();
  if (!committed.ok()) {
    if (committed.error().code() != ErrorCode::kCorrupt) return committed.error();
    return GiveUpAnchor(load_->name(), committed.error());
  }
  held_ = load_->record();
  target_changed_ = false;
  load_ = nullptr;
  wanted_anchor_.reset();
  ++counters_.anchors_loaded;
  Forget();
  return FollowerStep::kApply;
}

Result<FollowerStep> Follower::GiveUpAnchor(AnchorName name, const Error& why) {
  gone_.anchors.insert(name);
  if (!gone_why_.has_value()) gone_why_ = why;
  load_ = nullptr;
  wanted_anchor_.reset();
  ++counters_.detours;
  return Plan(KnownRecord(*newest_));
}

// --- what others see ---

void Follower::StandStill(std::optional<Version> at, bool back) {
  stop_at_ = at;
  go_back_ = back && at.has_value();
  queue_.clear();
  if (at.has_value()) {
    view_.reset();
    while (!staged_.empty() && staged_.back().known.record.version > *at) staged_.pop_back();
  }
  if (at.has_value() && newest_.has_value() && newest_->record.version > *at) {
    // The way that was planned leads further.
    load_ = nullptr;
    wanted_anchor_.reset();
    plan_again_ = false;
    newest_.reset();
  }
}

void Follower::Saw(const KnownRecord& record) {
  const Version version = record.record.version;
  newest_seen_ = std::max(newest_seen_.value_or(0), version);
  if (held_.has_value() && version <= held_->record.version) return;
  if (seen_.empty() || seen_.back().first < version) seen_.emplace_back(version, tools_.clock->Monotonic());
}

FollowerStatus Follower::status() const {
  FollowerStatus status = counters_;
  if (const auto& held = target_.held(); held.has_value()) {
    status.held = held->version;
    status.held_step = held->step;
  }
  if (!staged_.empty()) status.staged = staged_.back().known.record.version;
  // Also while there is no way to it, and so nothing planned; and after going back.
  status.newest = newest_seen_;
  if (newest_.has_value()) status.newest = std::max(status.newest.value_or(0), newest_->record.version);
  if (!seen_.empty()) status.behind = tools_.clock->Monotonic() - seen_.front().second;
  status.has_lease = lease_.IsAlive();
  if (lease_.error().has_value()) status.lease_error = lease_.error()->message();
  if (load_ != nullptr) {
    status.waits_for = fmt::format("the anchor of version {}", load_->name().version);
  } else if (!queue_.empty()) {
    status.waits_for = fmt::format("the delta of version {}", queue_.front().known.record.version);
  } else if (!staged_.empty() && !options_.apply_at_once) {
    status.waits_for = "being told to apply";
  } else if (status.held.has_value() && !MayGoBeyond(*status.held)) {
    status.waits_for = fmt::format("nothing: it stands still on version {}", *status.held);
  } else {
    status.waits_for = status.held.has_value() ? fmt::format("version {}", *status.held + 1) : "the first version";
  }
  return status;
}

}  // namespace weightwire
