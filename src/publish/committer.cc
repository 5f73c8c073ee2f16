#include "publish/committer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/object_hash.h"
#include "publish/anchor_assembly.h"
#include "publish/policy.h"
#include "publish/record_commit.h"

namespace weightwire {
namespace {

Verdict VerdictOn(std::uint64_t call, Verdict::Outcome outcome) {
  Verdict verdict;
  verdict.call = call;
  verdict.outcome = outcome;
  return verdict;
}

}  // namespace

Committer::Committer(Run run, const PublisherOptions& options, AnchorOptions anchors, Random& random, Spool* spool,
                     std::optional<KnownRecord> newest, std::optional<KnownAnchor> newest_anchor)
    : run_(std::move(run)),
      options_(options),
      anchors_(std::move(anchors)),
      random_(random),
      spool_(spool),
      writer_(NewId(random)),
      newest_(std::move(newest)),
      next_anchor_(NewId(random)),
      newest_anchor_(std::move(newest_anchor)) {}

// --- calls ---

void Committer::Take(std::uint64_t call, std::vector<Contribution> contributions, MonotonicTime now) {
  WW_CHECK(!stopped_ && (pending_.empty() || pending_.back().call < call));
  Pending pending(call, options_.retry);
  pending.contributions = std::move(contributions);
  if (const auto context = contexts_.find(call); context != contexts_.end()) {
    pending.context = std::move(context->second);
  }
  contexts_.erase(contexts_.begin(), contexts_.upper_bound(call));
  pending.taken = now;
  pending_.push_back(std::move(pending));
}

void Committer::Resume(std::uint64_t call, SpoolEntry entry) {
  Pending pending(call, options_.retry);
  pending.made = MadeRecord{std::move(entry.known), std::move(entry.record_json)};
  pending.new_layout = std::move(entry.layout);
  pending.again = true;
  pending_.push_back(std::move(pending));
}

void Committer::Fail(std::uint64_t call, const Error& error, bool rebase) {
  contexts_.erase(contexts_.begin(), contexts_.upper_bound(call));
  Verdict verdict = VerdictOn(call, Verdict::Outcome::kFailed);
  verdict.error = in_shards() ? error.In(fmt::format("nothing was published by call {} of publish", call)) : error;
  verdict.rebase = rebase;
  Tell(std::move(verdict));
}

void Committer::FailFrom(std::size_t index, const Error& error) {
  const std::uint64_t call = pending_[index].call;
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index), pending_.end());
  Fail(call, error, /*rebase=*/false);
}

void Committer::Tell(Verdict verdict) {
  next_anchor_ = NewId(random_);
  verdict.next_anchor = next_anchor_;
  verdicts_.push_back(std::move(verdict));
}

std::optional<Verdict> Committer::TakeVerdict() {
  if (verdicts_.empty()) return std::nullopt;
  Verdict verdict = std::move(verdicts_.front());
  verdicts_.pop_front();
  return verdict;
}

const Committer::Pending* Committer::Find(std::uint64_t call) const {
  const auto found = std::ranges::find(pending_, call, &Pending::call);
  return found == pending_.end() ? nullptr : &*found;
}

bool Committer::IsDecided(std::uint64_t call) const {
  const Pending* pending = Find(call);
  return pending != nullptr && pending->made.has_value();
}

bool Committer::PlansAnchor(std::uint64_t call) const {
  const Pending* pending = Find(call);
  return pending != nullptr && pending->plans_anchor;
}

// --- deciding ---

std::optional<DecideJob> Committer::NextDecide(MonotonicTime now) {
  if (decide_busy_) return std::nullopt;
  const auto next = std::ranges::find_if(pending_, [](const Pending& one) { return !one.made.has_value(); });
  if (next == pending_.end() || (next->due.has_value() && *next->due > now)) return std::nullopt;
  next->due.reset();
  next->busy = decide_busy_ = true;
  DecideJob job;
  job.call = next->call;
  job.cover = cover_;
  RecordRequest& request = job.request;
  request.run = run_.id();
  request.writer = writer_;
  request.parent = next == pending_.begin() ? newest_ : std::prev(next)->made->known;
  if (newest_anchor_.has_value()) request.newest_anchor = newest_anchor_->Ref();
  request.in_shards = in_shards();
  request.context = next->context;
  request.contributions = next->contributions;
  job.anchor_name = {request.version(), next_anchor_};
  return job;
}

void Committer::Execute(DecideJob& job) const {
  RecordRequest& request = job.request;
  std::optional<std::span<const std::uint8_t>> part;
  if (request.context.part != nullptr) {
    part = request.context.part->Sealed();
    const Sha256Digest hash = ObjectHash(*part);
    request.contributions.front().part =
        PartRef{PartKey(request.version() - 1, request.version(), hash), part->size(), hash};
  }
  const auto decide = [&]() -> Status {
    WW_TRY(const CheckedCall checked, CheckContributions(request, job.cover));
    job.cover = checked.cover;
    job.same = checked.same;
    if (checked.same) return Ok();
    if (request.whole() && request.in_shards) {
      std::vector<std::optional<SentPiece>> pieces;
      for (const Contribution& one : request.contributions) pieces.push_back(one.piece);
      const AnchorSubject subject{job.anchor_name, checked.state,
                                  request.parent.has_value() ? request.parent->record.delta_bytes : 0};
      WW_TRY(const AssembledAnchor assembled, AssembleAnchor(run_, subject, *checked.cover, pieces, anchors_.files));
      WW_TRY(request.context.anchor, PutAssembled(run_, assembled, anchors_));
    }
    std::optional<AnchorRef> own_anchor;
    if (request.context.anchor.has_value()) own_anchor = request.context.anchor->Ref();
    WW_TRY(job.made, MakeRecord(request, checked, own_anchor));
    if (spool_ == nullptr) return Ok();
    const bool new_layout =
        !request.parent.has_value() || request.parent->record.layout != job.made->known.record.layout;
    return spool_->Write(request.version(), job.made->json, part, new_layout ? request.context.layout.get() : nullptr);
  };
  if (const Status decided = decide(); !decided.ok()) {
    job.error = in_shards() && MaySucceedLater(decided.error())
                    ? decided.error().In(fmt::format("cannot publish version {}", request.version()))
                    : decided.error();
  }
}

void Committer::Finish(DecideJob job, MonotonicTime now) {
  decide_busy_ = false;
  const auto found = std::ranges::find(pending_, job.call, &Pending::call);
  if (found == pending_.end()) return;  // it failed while the job was executed
  found->busy = false;
  const auto index = static_cast<std::size_t>(found - pending_.begin());
  if (job.error.has_value()) {
    if (!in_shards()) return FailFrom(index, *job.error);
    return FailedAttempt(index, *job.error, now);
  }
  cover_ = job.cover;
  if (job.same) {
    pending_.erase(found);
    return Tell(VerdictOn(job.call, Verdict::Outcome::kSame));
  }
  Pending& pending = *found;
  const Record& record = job.made->known.record;
  const std::optional<KnownRecord>& parent = job.request.parent;
  const std::shared_ptr<const Layout> layout = pending.context.layout;
  if (!parent.has_value() || parent->record.layout != record.layout) pending.new_layout = layout;
  pending.plans_anchor = record.delta.has_value() && AnchorIsDue(record, *layout);
  pending.context.anchor = std::move(job.request.context.anchor);
  // The next calls of a group of one are decided before this version is committed, and name its anchor.
  if (!in_shards() && pending.context.anchor.has_value()) newest_anchor_ = pending.context.anchor;
  if (spool_ != nullptr) pending.context.part.reset();
  pending.contributions.clear();
  pending.made = std::move(job.made);
  pending.error.reset();
  pending.backoff.Reset();
}

// --- committing ---

std::optional<CommitJob> Committer::NextCommit(MonotonicTime now) {
  if (commit_busy_ || pending_.empty()) return std::nullopt;
  Pending& front = pending_.front();
  if (!front.made.has_value() || (front.due.has_value() && *front.due > now)) return std::nullopt;
  CommitJob job;
  job.call = front.call;
  job.made = *front.made;
  job.part = front.context.part;
  job.new_layout = front.new_layout;
  job.again = std::exchange(front.again, true);
  front.due.reset();
  front.busy = commit_busy_ = true;
  return job;
}

Status Committer::PutParts(const CommitJob& job) const {
  const Record& record = job.made.known.record;
  for (const PartRef& part : record.delta.value_or(std::vector<PartRef>())) {
    if (job.part != nullptr) {
      WW_RETURN_IF_ERROR(PutPart(run_.store(), part, job.part->Sealed(), job.again));
    } else {
      WW_TRY(const std::unique_ptr<FileMap> map, spool_->OpenPart(record.version));
      WW_RETURN_IF_ERROR(PutPart(run_.store(), part, map->bytes(), job.again));
    }
  }
  return Ok();
}

void Committer::Execute(CommitJob& job) const {
  const Version version = job.made.known.record.version;
  const auto attempt = [&]() -> Result<ReadBackOutcome> {
    if (job.new_layout != nullptr) WW_RETURN_IF_ERROR(run_.PutLayout(*job.new_layout));
    // Several ranks have put their parts before they contributed.
    if (!in_shards()) WW_RETURN_IF_ERROR(PutParts(job));
    job.record_sent = true;
    return CommitRecord(run_, version, job.made.json);
  };
  const auto outcome = attempt();
  if (!outcome.ok()) {
    job.outcome = CommitJob::Outcome::kError;
    job.error = outcome.error().In(fmt::format("cannot publish version {}", version));
  } else if (outcome.value() == ReadBackOutcome::kConflict) {
    job.outcome = CommitJob::Outcome::kStopped;
    job.error = AnotherWriterWon(run_, version, spool_ != nullptr);
  } else {
    job.outcome = CommitJob::Outcome::kCommitted;
    // If this fails, the next start finds the entry committed.
    if (spool_ != nullptr) static_cast<void>(spool_->Remove(version));
  }
}

void Committer::Finish(CommitJob job, MonotonicTime now) {
  commit_busy_ = false;
  if (pending_.empty() || pending_.front().call != job.call) return;
  Pending& front = pending_.front();
  front.busy = false;
  switch (job.outcome) {
    case CommitJob::Outcome::kCommitted: {
      last_error_.reset();
      newest_ = job.made.known;
      const Record& record = newest_->record;
      Verdict verdict = VerdictOn(job.call, Verdict::Outcome::kCommitted);
      verdict.record_json = std::move(job.made.json);
      if (!record.delta.has_value()) {
        // None of a version that an earlier process has spooled: only its record names that anchor.
        if (front.context.anchor.has_value()) newest_anchor_ = std::move(front.context.anchor);
        anchor_.reset();  // of an earlier version, it is of little use now
      }
      if (front.plans_anchor) {
        anchor_ = AnchorSubject{{record.version, NewId(random_)}, record.state, record.delta_bytes};
        verdict.anchor = anchor_->name.id;
      }
      pending_.pop_front();
      Tell(std::move(verdict));
      return;
    }
    case CommitJob::Outcome::kStopped: {
      stopped_ = true;
      Verdict verdict = VerdictOn(job.call, Verdict::Outcome::kStopped);
      verdict.error = job.error;
      pending_.clear();
      anchor_.reset();
      Tell(std::move(verdict));
      return;
    }
    case CommitJob::Outcome::kError:
      front.maybe_committed =
          front.maybe_committed || (job.record_sent && job.error->code() == ErrorCode::kUnknownOutcome);
      FailedAttempt(0, *job.error, now);
  }
}

void Committer::FailedAttempt(std::size_t index, const Error& error, MonotonicTime now) {
  Pending& pending = pending_[index];
  last_error_ = error;
  if (in_shards() && !pending.maybe_committed) {
    if (!MaySucceedLater(error)) return FailFrom(index, error);
    progress_ = true;
  }
  pending.error = error;
  // Ranks wait for the verdict, and only until the deadline: the committer retries soon after every error.
  pending.due = now + (in_shards() ? pending.backoff.Next() : pending.backoff.Next(error));
}

bool Committer::Tick(MonotonicTime now) {
  const auto time_out = TimesOut();
  if (!time_out.has_value() || now < *time_out) return false;
  FailFrom(0, Error(*pending_.front().error));
  return true;
}

std::optional<MonotonicTime> Committer::TimesOut() const {
  if (!in_shards() || pending_.empty()) return std::nullopt;
  const Pending& front = pending_.front();
  if (front.busy || front.maybe_committed || !front.error.has_value()) return std::nullopt;
  return front.taken + options_.group->deadline / 100 * kVerdictPercent + std::chrono::milliseconds(1);
}

std::optional<MonotonicTime> Committer::DecideDue() const {
  const auto next = std::ranges::find_if(pending_, [](const Pending& one) { return !one.made.has_value(); });
  return Sooner(TimesOut(), next == pending_.end() || next->busy ? std::nullopt : next->due);
}

std::optional<MonotonicTime> Committer::CommitDue() const {
  const bool waits = !pending_.empty() && pending_.front().made.has_value() && !pending_.front().busy;
  return Sooner(TimesOut(), waits ? pending_.front().due : std::nullopt);
}

// --- anchors by policy ---

bool Committer::AnchorIsDue(const Record& record, const Layout& layout) const {
  const bool planned = std::ranges::any_of(pending_, [](const Pending& one) { return one.plans_anchor; });
  return !anchor_.has_value() && !planned && anchor_backoff_.Allows(record.version) &&
         IsAnchorDue({options_.anchor_every, options_.anchor_percent}, newest_anchor_, record.version,
                     record.delta_bytes, layout.total_bytes());
}

void Committer::AnchorCompleted(KnownAnchor anchor) {
  // A version without a delta may have been committed since.
  const bool newer =
      !newest_anchor_.has_value() || newest_anchor_->manifest.name.version < anchor.manifest.name.version;
  if (newer) newest_anchor_ = std::move(anchor);
  anchor_error_.reset();
  anchor_backoff_.Completed();
  anchor_.reset();
}

void Committer::AnchorAbandoned(const Error& why) {
  anchor_error_ = why;
  anchor_backoff_.Abandoned(newest_.has_value() ? newest_->record.version : 0);
  anchor_.reset();
}

}  // namespace weightwire
