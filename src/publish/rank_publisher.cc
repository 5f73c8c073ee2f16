#include "publish/rank_publisher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/object_hash.h"
#include "follow/rebuild.h"
#include "follow/targets/memory_target.h"
#include "publish/jobs.h"
#include "publish/retry_pause.h"
#include "publish/writer_start.h"

namespace weightwire {
namespace {

// How often one who is long at something says so, within the deadline.
constexpr int kSignsPerDeadline = 8;

// A rank gives up before the others give the rank up.
MonotonicTime TryingTime(const RankOptions& options) { return options.deadline / 10 * 6; }

long Seconds(MonotonicTime time) {
  return static_cast<long>(std::chrono::duration_cast<std::chrono::seconds>(time).count());
}

}  // namespace

RankPublisher::RankPublisher(Run run, RankOptions options, PublisherTools tools)
    : run_(std::move(run)),
      options_(std::move(options)),
      tools_(std::move(tools)),
      base_(base_maker_, *tools_.kernels, *tools_.pool, tools_.exclusion) {}

Result<std::unique_ptr<RankPublisher>> RankPublisher::Open(Run run, RankOptions options, const PublisherTools& tools,
                                                           std::string_view start) {
  WW_CHECK(options.rank < options.ranks && start.empty() == (options.rank == 0));
  std::unique_ptr<RankPublisher> publisher(new RankPublisher(std::move(run), std::move(options), tools));
  WW_RETURN_IF_ERROR(publisher->Start(start));
  return publisher;
}

Status RankPublisher::Start(std::string_view start) {
  WW_RETURN_IF_ERROR(run_.CheckMayWrite());
  if (options_.rank == 0) {
    WW_RETURN_IF_ERROR(CheckOneWins(run_, *tools_.random));
    WW_TRY(newest_, run_.FindNewest(std::nullopt));
    std::optional<KnownAnchor> anchor;
    if (newest_.has_value()) {
      WW_TRY(anchor, FindNewestAnchor(run_, newest_->record));
    }
    CommitterOptions committer;
    committer.ranks = options_.ranks;
    if (options_.bugs.commit_without_last_rank && options_.ranks > 1) --committer.ranks;
    committer.bugs = options_.bugs;
    committer.deadline = options_.deadline;
    committer.anchor_every = options_.anchor_every;
    committer.anchor_percent = options_.anchor_percent;
    committer.anchors.files = options_.anchor_files;
    committer.anchors.file_system = tools_.files;
    if (options_.carried_directory.has_value()) {
      WW_TRY(CarriedFiles carried, FindCarriedFiles(*tools_.files, *options_.carried_directory, options_.carry_code));
      committer.anchors.carried = std::move(carried.files);
      warnings_ = std::move(carried.left_out);
    }
    committer_.emplace(run_, std::move(committer), *tools_.random, *tools_.clock, newest_, std::move(anchor));
    next_anchor_ = committer_->Start().next_anchor;
  } else {
    WW_TRY(const GroupStart group, ParseGroupStart(start));
    if (group.run != run_.id()) {
      return Error(ErrorCode::kMismatch,
                   fmt::format("{} is run {}, and rank 0 publishes to run {}: all ranks must see the same bucket or "
                               "directory",
                               run_.store().Name(), ToHex(run_.id()), ToHex(group.run)));
    }
    next_anchor_ = group.next_anchor;
    if (group.newest.has_value()) {
      WW_TRY(newest_, run_.ReadRecord(*group.newest));
      if (!newest_.has_value() || newest_->hash != group.record_hash) {
        return Error(ErrorCode::kMismatch,
                     fmt::format("version {} of {} is not what rank 0 sees there: do all ranks have the same run?",
                                 *group.newest, run_.store().Name()));
      }
    }
  }
  if (newest_.has_value()) newest_serial_ = 0;
  return Ok();
}

Result<bool> RankPublisher::Rebuild(const KnownRecord& version, const std::shared_ptr<const Shards>& shards,
                                    Version serial) {
  if (!options_.rebuild || version.record.layout != shards->whole()->hash()) return false;
  MemoryTarget target(*tools_.kernels, *tools_.pool);
  FollowerOptions options;
  options.name = fmt::format("rank {} of a publisher", options_.rank);
  options.fetch_threads = tools_.fetch_threads;
  const Status rebuilt = weightwire::Rebuild(run_, version.record.version, target, NewId(*tools_.random), options,
                                             {tools_.clock, tools_.kernels, tools_.pool});
  if (!rebuilt.ok()) {
    if (MayMend(rebuilt.error())) return rebuilt.error();
    return false;
  }
  // The target has digested all of it.
  std::vector<std::vector<std::uint8_t>> copies(shards->size());
  StateBits bits{shards->own(), {}, {}, shards};
  for (std::size_t i = 0; i < shards->size(); ++i) {
    copies[i].resize(shards->own()->byte_size(i));
    CopyShard(shards->map(i), target.bytes(shards->all()[i].tensor), copies[i]);
    bits.tensors.emplace_back(copies[i]);
  }
  WW_RETURN_IF_ERROR(base_.Replace(bits, serial));
  return true;
}

// --- the caller's side ---

std::vector<const RankPublisher::Entry*> RankPublisher::Live() const {
  std::vector<const Entry*> live;
  for (const Entry& entry : entries_) {
    if (entry.in_base) live.push_back(&entry);
  }
  return live;
}

RankAdmission RankPublisher::Admit() const {
  RankAdmission admission;
  admission.stopped = stopped_;
  admission.out_of_touch = out_of_touch_;
  const std::vector<const Entry*> live = Live();
  admission.empty = live.empty();
  admission.full = live.size() >= options_.max_versions || entry_bytes_ >= options_.max_bytes;
  // A base is rebuilt from what is committed: with versions on their way one waits for them.
  if (!base_.holds() && !live.empty()) admission.full = true;
  if (recovering_ && !entries_.empty()) admission.full = true;
  admission.newest_serial = live.empty() ? newest_serial_ : live.back()->draft.serial;
  admission.safe = newest_serial_.value_or(0);
  if (live.empty()) admission.newest = newest_;
  if (newest_.has_value()) admission.newest_layout = newest_->record.layout;
  if (!live.empty()) admission.newest_layout = live.back()->draft.shards->whole()->hash();
  admission.whole = whole_next_;
  admission.epoch = epoch_;
  return admission;
}

Result<std::optional<RankDraft>> RankPublisher::MakeWhole(const StateBits& bits, RankDraft draft,
                                                          const RankAdmission& admission) {
  // Another version without a delta may still be read from the base.
  if (!admission.empty) return std::optional<RankDraft>();
  const Version serial = admission.newest_serial.has_value() ? *admission.newest_serial + 1 : 0;
  WW_RETURN_IF_ERROR(base_.Replace(bits, serial));
  draft.whole = true;
  for (std::size_t i = 0; i < bits.shards->size(); ++i) draft.changed += bits.shards->map(i).unit_count();
  draft.serial = serial;
  draft.after = base_.digests();
  draft.pin = base_.Pin(/*revocable=*/false);
  return std::optional(std::move(draft));
}

Result<std::optional<RankDraft>> RankPublisher::Make(const StateBits& bits, std::uint64_t step,
                                                     const RankAdmission& admission) {
  WW_CHECK(bits.shards != nullptr && *bits.layout == *bits.shards->own());
  WW_RETURN_IF_ERROR(CheckBits(bits));
  RankDraft draft;
  draft.step = step;
  draft.shards = bits.shards;
  draft.epoch = admission.epoch;
  if (base_.holds() && !admission.newest_serial.has_value()) base_.Lose();
  if (base_.holds() && base_.version() > *admission.newest_serial && !options_.bugs.no_roll_back) {
    // What was published after it failed. If the old bits are gone, so is the base.
    static_cast<void>(base_.RollBack(*admission.newest_serial));
  }
  // Other shards of the same state are another base. Another state is decided upon by all ranks alike.
  const Sha256Digest& layout = bits.shards->whole()->hash();
  const bool other_layout = admission.newest_layout.has_value() && *admission.newest_layout != layout;
  if (base_.holds() && !(*base_.shards() == *bits.shards)) {
    if (!admission.empty) return std::optional<RankDraft>();
    base_.Lose();
  }
  if (base_.holds()) base_.Forget(admission.safe, base_.StepLimit());
  // Before its first call no rank has a base, so all decide alike.
  const bool begins_whole = !std::exchange(made_, true) && !options_.rebuild;
  if (!admission.newest_serial.has_value() || admission.whole || other_layout || begins_whole) {
    return MakeWhole(bits, std::move(draft), admission);
  }
  if (!base_.holds()) {
    if (!admission.empty) return std::optional<RankDraft>();
    WW_TRY(const bool rebuilt, Rebuild(*admission.newest, bits.shards, *admission.newest_serial));
    if (!rebuilt) {
      draft.error = Error(ErrorCode::kNotFound, fmt::format("version {} cannot be had from the bucket any more; "
                                                            "publish again, which makes a version without a delta",
                                                            admission.newest->record.version));
      draft.needs_rebase = true;
      return std::optional(std::move(draft));
    }
  }
  WW_TRY(BaseAdvance advance, base_.Advance(bits, /*unless_same=*/false));
  draft.serial = base_.version();
  draft.changed = advance.changed;
  draft.before = std::move(advance.before);
  draft.after = base_.digests();
  if (!advance.same) draft.part = std::make_shared<const DeltaBytes>(std::move(advance.delta));
  draft.pin = base_.Pin(/*revocable=*/true);
  return std::optional(std::move(draft));
}

Ticket RankPublisher::Enqueue(RankDraft draft) {
  const MonotonicTime now = Now();
  auto ticket = std::make_shared<TicketStatus>();
  ticket->step = draft.step;
  ticket->changed = draft.changed;
  ticket->bytes = draft.part != nullptr ? draft.part->size_bytes() : 0;
  ticket->Reach(TicketStage::kQueued, now);
  if (stopped_.has_value()) {
    // While it was made: nobody waits for it any more.
    ticket->error = stopped_;
    ticket->Reach(TicketStage::kFailed, now);
    return ticket;
  }
  if (!draft.error.has_value() && draft.epoch != epoch_ && !options_.bugs.epoch_ignored) {
    draft.error = Error(ErrorCode::kUnavailable, "the version before it was not published; publish again");
  }
  // As far as can be told now: a call before it may turn out to add nothing.
  if (!draft.error.has_value()) {
    ticket->version = (newest_.has_value() ? newest_->record.version + 1 : 0) + Live().size();
  }
  Entry& entry = entries_.emplace_back();
  entry.call = next_call_++;
  entry.ticket = ticket;
  entry.in_base = !draft.error.has_value();
  if (draft.whole) whole_next_ = false;
  if (committer_.has_value() && draft.shards != nullptr) committer_->KnowLayout(entry.call, draft.shards->whole());
  entry.draft = std::move(draft);
  entry_bytes_ += ticket->bytes;
  // Touch was lost while it was made: it counts, but is not waited for.
  if (out_of_touch_.has_value()) FailEntries(*out_of_touch_);
  return ticket;
}

Ticket RankPublisher::Refuse(std::uint64_t step, const Error& why) {
  RankDraft draft;
  draft.step = step;
  draft.error = why;
  return Enqueue(std::move(draft));
}

// --- the board ---

std::vector<std::string> RankPublisher::Wanted() const {
  std::vector<std::string> keys;
  if (committer_.has_value()) keys = committer_->Wanted();
  if (!entries_.empty()) {
    keys.push_back(VerdictKey(entries_.front().call));
    if (entries_.front().reported) {
      keys.push_back(AliveKey(fmt::to_string(entries_.front().call), std::nullopt, entries_.front().alive_heard));
    }
  }
  if (piece_.has_value()) keys.push_back(EndedKey(piece_->anchor));
  return keys;
}

void RankPublisher::Deliver(const std::string& key, const std::string& text) {
  const MonotonicTime now = Now();
  if (committer_.has_value()) committer_->Deliver(key, text, now);
  if (piece_.has_value() && key == EndedKey(piece_->anchor)) ForgetPiece();
  if (entries_.empty()) return;
  Entry& front = entries_.front();
  if (key == AliveKey(fmt::to_string(front.call), std::nullopt, front.alive_heard)) {
    ++front.alive_heard;
    front.begun = now;
  }
  if (key != VerdictKey(front.call)) return;
  const auto verdict = ParseVerdict(text);
  if (!verdict.ok()) {
    stopped_ = verdict.error().In("rank 0 said something that is not understood");
    FailEntries(*stopped_);
    return;
  }
  TakeVerdict(verdict.value());
}

void RankPublisher::TakeVerdict(const Verdict& verdict) {
  const MonotonicTime now = Now();
  Entry entry = std::move(entries_.front());
  entries_.pop_front();
  entry_bytes_ -= entry.draft.part != nullptr ? entry.draft.part->size_bytes() : 0;
  outgoing_.push_back({SeenKey(entry.call, options_.rank), "1"});
  for (std::uint64_t i = 0; i < entry.alive_told; ++i) {
    unneeded_.push_back(AliveKey(fmt::to_string(entry.call), options_.rank, i));
  }
  out_of_touch_.reset();
  last_error_.reset();
  next_anchor_ = verdict.next_anchor;
  recovering_ = verdict.outcome == Verdict::Outcome::kFailed;
  switch (verdict.outcome) {
    case Verdict::Outcome::kCommitted: {
      auto record = ParseRecord(verdict.record_json);
      if (!record.ok() || entry.draft.error.has_value()) {
        stopped_ = Error(ErrorCode::kMismatch, "rank 0 has committed a version that this rank has no part in");
        entry.ticket->error = stopped_;
        entry.ticket->Reach(TicketStage::kFailed, now);
        FailEntries(*stopped_);
        return;
      }
      const std::span bytes = BytesOf(verdict.record_json);
      newest_ = KnownRecord{std::move(record).value(), Sha256Of(bytes)};
      newest_serial_ = entry.draft.serial;
      entry.ticket->version = newest_->record.version;
      // Now of all ranks.
      entry.ticket->bytes = newest_->record.OwnDeltaBytes();
      entry.ticket->changed = newest_->record.changed;
      if (!entry.ticket->IsFinal()) {
        entry.ticket->error.reset();
        entry.ticket->Reach(TicketStage::kCommitted, now);
      }
      if (verdict.anchor.has_value()) {
        const AnchorName name{newest_->record.version, *verdict.anchor};
        ForgetPiece();
        piece_ = Piece{name.id, MakePieceWriter(entry.draft, name), entry.draft.shards, 0, {}, false, now, 0, now};
      }
      return;
    }
    case Verdict::Outcome::kSame:
      newest_serial_ = entry.draft.serial;
      entry.ticket->version = newest_->record.version;
      if (!entry.ticket->IsFinal()) {
        entry.ticket->error.reset();
        entry.ticket->Reach(TicketStage::kAlreadyPublished, now);
      }
      return;
    case Verdict::Outcome::kFailed:
    case Verdict::Outcome::kStopped:
      entry.ticket->error = verdict.error;
      if (!entry.ticket->IsFinal()) entry.ticket->Reach(TicketStage::kFailed, now);
      whole_next_ = verdict.rebase;
      if (verdict.outcome == Verdict::Outcome::kStopped) {
        stopped_ = verdict.error;
        FailEntries(*stopped_);
        return;
      }
      if (!entry.in_base || options_.bugs.no_roll_back) return;
      // What was made from it cannot be published. Their calls are still to be counted.
      ++epoch_;
      for (Entry& later : entries_) {
        if (!later.in_base) continue;
        later.in_base = false;
        later.draft.error = Error(ErrorCode::kUnavailable, "the version before it was not published; publish again");
        entry_bytes_ -= later.draft.part != nullptr ? later.draft.part->size_bytes() : 0;
        later.draft.part.reset();
        later.draft.pin.reset();
      }
      return;
  }
}

void RankPublisher::FailEntries(const Error& why) {
  for (const Entry& entry : entries_) {
    if (entry.ticket->IsFinal()) continue;
    entry.ticket->error =
        stopped_.has_value()
            ? why
            : Error(ErrorCode::kUnknownOutcome,
                    fmt::format("{}: call {} of publish may be committed or not", why.message(), entry.call));
    entry.ticket->Reach(TicketStage::kFailed, Now());
  }
  if (stopped_.has_value()) {
    entries_.clear();
    entry_bytes_ = 0;
    piece_.reset();
  }
}

std::vector<BoardMessage> RankPublisher::TakeOutgoing() {
  std::vector<BoardMessage> messages = std::exchange(outgoing_, {});
  if (committer_.has_value()) {
    for (BoardMessage& message : committer_->TakeOutgoing()) messages.push_back(std::move(message));
  }
  return messages;
}

std::vector<std::string> RankPublisher::TakeUnneeded() {
  std::vector<std::string> keys = std::exchange(unneeded_, {});
  if (committer_.has_value()) {
    for (std::string& key : committer_->TakeUnneeded()) keys.push_back(std::move(key));
  }
  return keys;
}

void RankPublisher::LoseTouch(const Error& why) {
  out_of_touch_ = why;
  FailEntries(why);
}

void RankPublisher::RegainTouch() {
  out_of_touch_.reset();
  if (!entries_.empty() && entries_.front().begun.has_value()) entries_.front().begun = Now();
}

// Its keys are this rank's to remove.
void RankPublisher::ForgetPiece() {
  if (!piece_.has_value()) return;
  if (piece_->writer == nullptr) unneeded_.push_back(PieceKey(piece_->anchor, options_.rank));
  for (std::uint64_t i = 0; i < piece_->alive_told; ++i) {
    unneeded_.push_back(AliveKey(ToHex(piece_->anchor), options_.rank, i));
  }
  piece_.reset();
}

void RankPublisher::Report(Entry& entry) {
  const RankDraft& draft = entry.draft;
  RankReport report;
  report.error = draft.error;
  report.needs_rebase = draft.needs_rebase;
  report.step = draft.step;
  if (!draft.error.has_value()) {
    report.layout = draft.shards->whole()->hash();
    report.shards = ToText(*draft.shards);
    report.whole = draft.whole;
    report.before = draft.before;
    report.after = draft.after;
    report.changed = draft.changed;
    report.part = entry.put;
    if (entry.writer != nullptr) report.piece = entry.writer->piece();
  }
  outgoing_.push_back({ReportKey(entry.call, options_.rank), ToJson(report)});
  entry.reported = true;
  entry.begun = Now();
}

// --- the work ---

std::shared_ptr<PieceWriter> RankPublisher::MakePieceWriter(const RankDraft& draft, const AnchorName& anchor) const {
  return std::make_shared<PieceWriter>(run_, anchor, options_.rank, draft.shards,
                                       std::make_shared<BaseSource>(base_, draft.pin), options_.anchor_files,
                                       *tools_.kernels);
}

bool RankPublisher::Tick() {
  const MonotonicTime now = Now();
  bool changed = committer_.has_value() && committer_->Tick(now);
  if (entries_.empty()) return changed;
  Entry& front = entries_.front();
  if (!front.begun.has_value()) front.begun = now;
  if (!front.reported && !front.busy) {
    const bool nothing_to_send = !front.draft.whole && front.draft.part == nullptr;
    if (front.draft.error.has_value() || nothing_to_send) {
      Report(front);
      changed = true;
    }
  }
  if (const auto time_out = TouchTimesOut(); time_out.has_value() && now >= *time_out) {
    LoseTouch({ErrorCode::kUnavailable, fmt::format("rank 0 has not said within {} s what became of call {} of publish",
                                                    Seconds(options_.deadline), front.call)});
    changed = true;
  }
  if (const auto sign = SignIsDue(); sign.has_value() && now >= *sign) {
    GiveSign(front, now);
    changed = true;
  }
  return changed;
}

std::optional<MonotonicTime> RankPublisher::TouchTimesOut() const {
  if (entries_.empty() || !entries_.front().reported || out_of_touch_.has_value()) return std::nullopt;
  return *entries_.front().begun + options_.deadline + std::chrono::milliseconds(1);
}

// Pieces are sent in steps, and give their signs between these.
std::optional<MonotonicTime> RankPublisher::SignIsDue() const {
  if (entries_.empty() || !entries_.front().busy || entries_.front().draft.part == nullptr) return std::nullopt;
  const Entry& front = entries_.front();
  const std::chrono::seconds slowest(front.draft.part->size_bytes() / options_.slowest_bytes_per_second);
  const MonotonicTime sign = std::max(front.told_at, front.sent_at) + options_.deadline / kSignsPerDeadline;
  return sign < front.sent_at + options_.deadline + slowest ? std::optional(sign) : std::nullopt;
}

void RankPublisher::GiveSign(Entry& entry, MonotonicTime now) {
  entry.told_at = now;
  outgoing_.push_back({AliveKey(fmt::to_string(entry.call), options_.rank, entry.alive_told++), "1"});
}

std::optional<RankJob> RankPublisher::Next(RankLane lane) {
  const MonotonicTime now = Now();
  if (lane == RankLane::kCommit || lane == RankLane::kComplete) {
    if (!committer_.has_value()) return std::nullopt;
    if (lane == RankLane::kCommit) {
      auto job = committer_->NextCommit(now);
      return job.has_value() ? std::optional<RankJob>(*std::move(job)) : std::nullopt;
    }
    auto job = committer_->NextComplete(now);
    return job.has_value() ? std::optional<RankJob>(*std::move(job)) : std::nullopt;
  }
  if (lane == RankLane::kAnchor) {
    if (!piece_.has_value() || piece_->writer == nullptr || piece_->busy) return std::nullopt;
    if (piece_->due.has_value() && *piece_->due > now) return std::nullopt;
    piece_->due.reset();
    piece_->busy = true;
    return PieceJob{std::nullopt, piece_->writer, false, {}};
  }
  if (entries_.empty()) return std::nullopt;
  Entry& front = entries_.front();
  if (front.reported || front.busy || front.draft.error.has_value()) return std::nullopt;
  if (front.due.has_value() && *front.due > now) return std::nullopt;
  front.due.reset();
  front.busy = true;
  const Version version = newest_.has_value() ? newest_->record.version + 1 : 0;
  if (front.ticket->stage == TicketStage::kQueued) {
    front.ticket->version = version;
    front.ticket->Reach(TicketStage::kUploading, now);
  }
  if (front.draft.whole) {
    if (front.writer == nullptr) front.writer = MakePieceWriter(front.draft, {version, next_anchor_});
    return PieceJob{front.call, front.writer, false, {}};
  }
  front.sent_at = now;
  return PartJob{front.call, front.draft.part, version, front.attempts > 0, {}, {}};
}

void RankPublisher::Execute(RankJob& job) const {
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
  } else if (auto* piece = std::get_if<PieceJob>(&job)) {
    const auto step = piece->writer->Step();
    if (step.ok()) {
      piece->complete = step.value();
    } else {
      piece->error = step.error();
    }
  } else if (auto* commit = std::get_if<CommitJob>(&job)) {
    committer_->Execute(*commit);
  } else {
    committer_->Execute(std::get<CompleteJob>(job));
  }
}

void RankPublisher::Finish(RankJob job) {
  if (auto* part = std::get_if<PartJob>(&job)) {
    FinishPart(std::move(*part));
  } else if (auto* piece = std::get_if<PieceJob>(&job)) {
    FinishPiece(std::move(*piece));
  } else if (auto* commit = std::get_if<CommitJob>(&job)) {
    committer_->Finish(std::move(*commit), Now());
  } else {
    committer_->Finish(std::move(std::get<CompleteJob>(job)), Now());
  }
}

void RankPublisher::Failed(Entry& entry, const Error& error) {
  const MonotonicTime again = Now() + RetryPause(entry.attempts);
  if (MayMend(error) && again - *entry.begun < TryingTime(options_)) {
    last_error_ = error;
    entry.ticket->error = error;
    entry.due = again;
    ++entry.attempts;
    return;
  }
  entry.draft.error = error;
}

void RankPublisher::FinishPart(PartJob job) {
  if (entries_.empty() || entries_.front().call != job.call) return;  // the verdict came first
  Entry& front = entries_.front();
  front.busy = false;
  if (job.error.has_value()) {
    Failed(front, *job.error);
    return;
  }
  front.put = job.put;
  Report(front);
}

void RankPublisher::FinishPiece(PieceJob job) {
  const MonotonicTime now = Now();
  if (!job.call.has_value()) {
    if (!piece_.has_value() || piece_->writer != job.writer) return;
    piece_->busy = false;
    const MonotonicTime again = now + RetryPause(piece_->attempts);
    if (job.error.has_value() && MayMend(*job.error) && again - piece_->begun < TryingTime(options_)) {
      piece_->due = again;
      ++piece_->attempts;
      return;
    }
    if (!job.complete && !job.error.has_value()) {
      piece_->begun = now;
      if (now - piece_->told_at > options_.deadline / kSignsPerDeadline) {
        piece_->told_at = now;
        outgoing_.push_back({AliveKey(ToHex(piece_->anchor), options_.rank, piece_->alive_told++), "1"});
      }
      return;
    }
    PieceReport report;
    report.error = job.error;
    if (job.complete) {
      report.shards = ToText(*piece_->shards);
      report.digests = piece_->writer->digests();
      report.piece = piece_->writer->piece();
    }
    outgoing_.push_back({PieceKey(piece_->anchor, options_.rank), ToJson(report)});
    piece_->writer.reset();  // and with it what it keeps of the base
    return;
  }
  if (entries_.empty() || entries_.front().call != *job.call) return;
  Entry& front = entries_.front();
  front.busy = false;
  if (job.error.has_value()) {
    Failed(front, *job.error);
    return;
  }
  front.begun = now;
  front.attempts = 0;
  if (job.complete) {
    if (front.writer->digests() != front.draft.after) {
      front.draft.error = Error(ErrorCode::kMismatch, "the piece that was written is not what was to be published");
      return;
    }
    Report(front);
    return;
  }
  // It may take long: the others are told that it goes on.
  if (now - front.told_at > options_.deadline / kSignsPerDeadline) GiveSign(front, now);
}

std::optional<MonotonicTime> RankPublisher::Due(RankLane lane) const {
  if (lane == RankLane::kCommit || lane == RankLane::kComplete) {
    if (!committer_.has_value()) return std::nullopt;
    return lane == RankLane::kCommit ? committer_->CommitDue() : committer_->CompleteDue();
  }
  // One lane's thread may be busy for long: either looks at the time.
  const auto due = Sooner(TouchTimesOut(), SignIsDue());
  if (lane == RankLane::kAnchor) return piece_.has_value() && !piece_->busy ? Sooner(due, piece_->due) : due;
  return entries_.empty() ? due : Sooner(due, entries_.front().due);
}

bool RankPublisher::idle() const {
  return entries_.empty() && (!piece_.has_value() || piece_->writer == nullptr) && outgoing_.empty() &&
         (!committer_.has_value() || committer_->idle());
}

PublisherStatus RankPublisher::status() const {
  PublisherStatus status;
  if (newest_.has_value()) status.pipeline.committed = newest_->record.version;
  status.pipeline.versions_waiting = entries_.size();
  status.pipeline.bytes_waiting = entry_bytes_;
  status.pipeline.last_error = last_error_.has_value() ? last_error_ : out_of_touch_;
  status.pipeline.stopped = stopped_;
  if (committer_.has_value()) {
    status.pipeline.anchor_in_work = committer_->anchor_in_work();
    if (committer_->newest_anchor().has_value()) status.pipeline.newest_anchor = committer_->newest_anchor()->Ref();
    status.pipeline.anchor_error = committer_->anchor_error();
    if (!status.pipeline.last_error.has_value()) status.pipeline.last_error = committer_->last_error();
  }
  status.warnings = warnings_;
  return status;
}

}  // namespace weightwire
