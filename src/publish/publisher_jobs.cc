// The jobs of a publisher: what is due in each lane, its effects, and what follows from their outcomes.
#include <fmt/format.h>

#include <utility>

#include "base/object_hash.h"
#include "codec/digest/state.h"
#include "publish/publisher.h"
#include "publish/record_commit.h"
#include "publish/sooner.h"

namespace weightwire {

// --- lanes ---

bool Publisher::Uses(Lane lane) const {
  return committer_.has_value() || (lane != Lane::kDecide && lane != Lane::kCommit);
}

std::optional<Job> Publisher::Next(Lane lane) {
  const auto as_job = [](auto job) { return job.has_value() ? std::optional<Job>(*std::move(job)) : std::nullopt; };
  switch (lane) {
    case Lane::kDecide:
      return committer_.has_value() ? as_job(committer_->NextDecide(Now())) : std::nullopt;
    case Lane::kUpload:
      return NextUpload();
    case Lane::kCommit: {
      if (!committer_.has_value()) return std::nullopt;
      auto job = committer_->NextCommit(Now());
      Entry* entry = job.has_value() && board_ == nullptr ? Find(job->call) : nullptr;
      if (entry != nullptr && entry->ticket->stage != TicketStage::kUploading) {
        entry->ticket->Reach(TicketStage::kUploading, Now());
      }
      return as_job(std::move(job));
    }
    case Lane::kAnchor:
      return NextAnchor();
  }
  return std::nullopt;
}

std::optional<Job> Publisher::NextUpload() {
  if (entries_.empty()) return std::nullopt;
  Entry& front = entries_.front();
  const Draft& draft = front.draft;
  Sending& sending = front.sending;
  if (front.sent || draft.error.has_value() || !MaySend(sending)) return std::nullopt;
  if (!draft.whole && (board_ == nullptr || draft.part == nullptr)) return std::nullopt;
  sending.due.reset();
  sending.busy = true;
  if (front.ticket->stage == TicketStage::kQueued) {
    front.ticket->version = next_version();
    front.ticket->Reach(TicketStage::kUploading, Now());
  }
  if (!draft.whole) {
    sending.begun = Now();
    return PartJob{front.call, draft.part, next_version(), sending.backoff.failures() > 0, {}, {}};
  }
  if (sending.share == nullptr) {
    sending.anchor = {{next_version(), next_anchor_}, {}, newest_.has_value() ? newest_->record.delta_bytes : 0};
    if (board_ == nullptr) sending.anchor.state = StateDigest(*draft.layout, draft.after);
    sending.shards = draft.shards;
    sending.pin = draft.pin;
    BeginShare(sending);
  } else if (IsTooOld(sending)) {
    BeginShare(sending);
  }
  return ShareJob{front.call, sending.share, false, false, {}};
}

std::optional<Job> Publisher::NextAnchor() {
  if (!dropped_.empty()) {
    ShareJob job;
    job.share = std::move(dropped_.back());
    job.discard = true;
    dropped_.pop_back();
    return job;
  }
  if (task_.has_value() && task_->share != nullptr && MaySend(*task_)) {
    if (IsTooOld(*task_)) {
      BeginShare(*task_);
      return NextAnchor();
    }
    task_->due.reset();
    task_->busy = true;
    return ShareJob{std::nullopt, task_->share, false, false, {}};
  }
  if (!host_.has_value()) return std::nullopt;
  auto job = host_->pieces().Next(Now());
  return job.has_value() ? std::optional<Job>(*std::move(job)) : std::nullopt;
}

void Publisher::Execute(Job& job) const {
  if (auto* part = std::get_if<PartJob>(&job)) {
    const std::vector<std::uint8_t>& bytes = part->part->Sealed();
    const Sha256Digest hash = ObjectHash(bytes);
    const PartRef ref{PartKey(part->version - 1, part->version, hash), bytes.size(), hash};
    const Status put = PutPart(run_.store(), ref, bytes, part->again);
    if (put.ok()) {
      part->put = ref;
    } else {
      part->error = put.error().In(fmt::format("cannot upload a part of version {}", part->version));
    }
  } else if (auto* share = std::get_if<ShareJob>(&job)) {
    if (share->discard) {
      share->share.reset();
      return;
    }
    const auto step = share->share->Step();
    if (step.ok()) {
      share->complete = step.value();
    } else {
      share->error = step.error();
    }
  } else if (auto* decide = std::get_if<DecideJob>(&job)) {
    committer_->Execute(*decide);
  } else if (auto* commit = std::get_if<CommitJob>(&job)) {
    committer_->Execute(*commit);
  } else {
    host_->pieces().Execute(std::get<AssembleJob>(job));
  }
}

void Publisher::Finish(Job job) {
  if (auto* part = std::get_if<PartJob>(&job)) {
    FinishPart(std::move(*part));
  } else if (const auto* share = std::get_if<ShareJob>(&job)) {
    if (share->discard) return;
    share->call.has_value() ? FinishShare(*share) : FinishTask(*share);
  } else if (auto* decide = std::get_if<DecideJob>(&job)) {
    FinishDecide(std::move(*decide));
  } else if (auto* commit = std::get_if<CommitJob>(&job)) {
    FinishCommit(std::move(*commit));
  } else {
    host_->pieces().Finish(std::move(std::get<AssembleJob>(job)), Now());
  }
  Exchange();
}

void Publisher::FinishPart(PartJob job) {
  if (entries_.empty() || entries_.front().call != job.call) return;  // the verdict came first
  Entry& front = entries_.front();
  front.sending.busy = false;
  front.put = job.put;
  if (job.error.has_value()) FailedUpload(front, *job.error);
}

void Publisher::FinishShare(const ShareJob& job) {
  if (entries_.empty() || entries_.front().call != *job.call) return;
  Entry& front = entries_.front();
  front.sending.busy = false;
  if (job.error.has_value()) return FailedUpload(front, *job.error);
  front.sending.progress = Now();
  front.sending.backoff.Reset();
  front.share_complete = job.complete;
  if (board_ == nullptr) {
    front.ticket->error.reset();
    last_error_.reset();
    return;
  }
  if (!job.complete) {
    if (Now() > board_->HeartbeatDue(MonotonicTime(0))) board_->SendHeartbeat(Now());
  } else if (static_cast<const PieceWriter&>(*job.share).digests() != front.draft.after) {
    front.draft.error = Error(ErrorCode::kMismatch, "the piece that was written is not what was to be published");
  }
}

void Publisher::FailedUpload(Entry& entry, const Error& error) {
  if (WillRetry(entry.sending, error)) {
    last_error_ = error;
    entry.ticket->error = error;
    return;
  }
  entry.draft.error = error;
  if (board_ == nullptr) committer_->Fail(entry.call, error, /*rebase=*/false);
}

void Publisher::FinishDecide(DecideJob job) {
  const std::uint64_t call = job.call;
  committer_->Finish(std::move(job), Now());
  Entry* entry = board_ == nullptr ? Find(call) : nullptr;
  if (entry == nullptr || !committer_->IsDecided(call)) return;
  entry->decided = true;
  entry->ticket->Reach(TicketStage::kSpooled, Now());
  if (spool_ != nullptr) entry->draft.part.reset();
  if (!committer_->PlansAnchor(call)) entry->draft.pin.reset();
}

void Publisher::FinishCommit(CommitJob job) {
  Entry* entry = board_ == nullptr ? Find(job.call) : nullptr;
  if (entry != nullptr) entry->ticket->error = job.error;
  committer_->Finish(std::move(job), Now());
}

std::optional<MonotonicTime> Publisher::Due(Lane lane) const {
  // The thread of one lane may be busy for long, so each of them looks at the time.
  auto due = board_ != nullptr ? Sooner(board_->TickDue(), HeartbeatDue()) : std::nullopt;
  switch (lane) {
    case Lane::kDecide:
      return committer_.has_value() ? Sooner(due, committer_->DecideDue()) : due;
    case Lane::kUpload:
      return entries_.empty() ? due : Sooner(due, entries_.front().sending.due);
    case Lane::kCommit:
      return committer_.has_value() ? Sooner(due, committer_->CommitDue()) : due;
    case Lane::kAnchor:
      if (task_.has_value() && !task_->busy) due = Sooner(due, task_->due);
      return host_.has_value() ? Sooner(due, host_->pieces().Due()) : due;
  }
  return due;
}

bool Publisher::Work() {
  for (const Lane lane : kAllLanes) {
    auto job = Next(lane);
    if (!job.has_value()) continue;
    Execute(*job);
    Finish(std::move(*job));
    return true;
  }
  return false;
}

// --- sending ---

void Publisher::BeginShare(Sending& sending) {
  if (sending.share != nullptr) {
    dropped_.push_back(std::move(sending.share));
    sending.anchor.name.id = NewId(*tools_.random);
  }
  sending.begun = Now();
  std::shared_ptr<AnchorSource> source = maker_->SourceOf(sending.pin);
  // A single process has all weights, and writes files that any tool can load from the bucket. A rank has a piece.
  if (board_ == nullptr) {
    sending.share = std::make_shared<AnchorWriter>(run_, sending.anchor, std::move(source), anchors_, *tools_.kernels);
  } else {
    sending.share = std::make_shared<PieceWriter>(run_, sending.anchor.name, options_.group->rank, sending.shards,
                                                  std::move(source), options_.anchor_files, *tools_.kernels);
  }
}

bool Publisher::MaySend(const Sending& sending) const {
  return !sending.busy && (!sending.due.has_value() || *sending.due <= Now());
}

bool Publisher::IsTooOld(const Sending& sending) const {
  // Rank 0 decides when the pieces of the ranks are too old.
  return board_ == nullptr && Now() - sending.begun > options_.anchor_age;
}

bool Publisher::WillRetry(Sending& sending, const Error& error) const {
  // One of several ranks retries soon after every error, because the others wait and its time is limited.
  const MonotonicTime again = Now() + (board_ != nullptr ? sending.backoff.Next() : sending.backoff.Next(error));
  const bool retries = board_ != nullptr ? MaySucceedLater(error) && again - *sending.progress < board_->retry_limit()
                                         : ReactionTo(error) != Reaction::kGiveUp;
  if (retries) sending.due = again;
  return retries;
}

// --- anchors by policy ---

void Publisher::StartTask(const Entry& entry, const Record& record, const Id& anchor) {
  DropTask();
  Sending& task = task_.emplace(options_.retry);
  task.anchor = {{record.version, anchor}, record.state, record.delta_bytes};
  task.shards = entry.draft.shards;
  task.pin = entry.draft.pin;
  task.progress = Now();
  BeginShare(task);
  if (board_ != nullptr) board_->BeginPiece(anchor, Now());
}

void Publisher::DropTask() {
  if (!task_.has_value()) return;
  if (task_->share != nullptr) dropped_.push_back(std::move(task_->share));
  task_.reset();
  if (board_ == nullptr) committer_->DropAnchor();
}

void Publisher::FinishTask(const ShareJob& job) {
  if (!task_.has_value() || task_->share != job.share) return;  // it was dropped
  task_->busy = false;
  if (!job.complete && !job.error.has_value()) {
    task_->progress = Now();
    task_->backoff.Reset();
    if (board_ != nullptr) board_->SendPieceProgress(Now());
    return;
  }
  if (job.error.has_value() && WillRetry(*task_, *job.error)) {
    if (committer_.has_value()) committer_->SetAnchorError(*job.error);
    return;
  }
  if (board_ != nullptr) {
    PieceReport report;
    report.error = job.error;
    if (job.complete) {
      const auto& piece = static_cast<const PieceWriter&>(*job.share);
      report.shards = ToText(*task_->shards);
      report.digests = piece.digests();
      report.piece = piece.piece();
    }
    board_->SendPiece(report);
    task_->share.reset();
    task_->pin.reset();  // and with it what it keeps of the base
    return;
  }
  const Version version = task_->anchor.name.version;
  if (job.complete) {
    committer_->AnchorCompleted(static_cast<const AnchorWriter&>(*job.share).anchor());
    task_->share.reset();
  } else if (job.error->code() == ErrorCode::kMismatch) {
    committer_->AnchorAbandoned(job.error->In(fmt::format(
        "abandoned the anchor of version {}: new versions arrive faster than it uploads; publish less often, or run "
        "`weightwire anchor` near the bucket",
        version)));
  } else {
    committer_->AnchorAbandoned(*job.error);
  }
  DropTask();
}

}  // namespace weightwire
