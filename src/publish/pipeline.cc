#include "publish/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "publish/anchor_policy.h"

namespace weightwire {
namespace {

// After an anchor by policy was given up, none is begun for so many versions, doubled each time up to so often.
constexpr Version kAnchorPauseVersions = 8;
constexpr int kMostAnchorDoublings = 8;

}  // namespace

Pipeline::Pipeline(PipelineOptions options, const Id& run, const Id& writer, bool has_spool,
                   std::optional<KnownRecord> newest, std::optional<KnownAnchor> anchor,
                   MakeAnchorWriter make_anchor_writer)
    : options_(options),
      run_(run),
      writer_(writer),
      has_spool_(has_spool),
      make_anchor_writer_(std::move(make_anchor_writer)),
      committed_(std::move(newest)),
      newest_anchor_(std::move(anchor)) {}

void Pipeline::Resume(KnownRecord known, std::string record_json, std::shared_ptr<const Layout> layout) {
  WW_CHECK(known.record.version == (newest_version().has_value() ? *newest_version() + 1 : 0));
  Entry entry;
  entry.draft.version = known.record.version;
  entry.draft.step = known.record.step;
  entry.draft.state = known.record.state;
  entry.draft.has_delta = known.record.delta.has_value();
  entry.layout_hash = known.record.layout;
  entry.delta_bytes = known.record.delta_bytes;
  entry.part_bytes = known.record.OwnDeltaBytes();
  entry.new_layout = std::move(layout);
  entry.ticket = std::make_shared<TicketStatus>();
  entry.ticket->stage = TicketStage::kSpooled;
  entry.ticket->version = known.record.version;
  entry.ticket->step = known.record.step;
  entry.ticket->bytes = entry.part_bytes;
  entry.ticket->changed = known.record.changed;
  entry.known = std::move(known);
  entry.record_json = std::move(record_json);
  entry.spooled = true;
  entry.again = true;
  entry_bytes_ += entry.part_bytes;
  entries_.push_back(std::move(entry));
}

// --- the caller's side ---

std::optional<Version> Pipeline::newest_version() const {
  if (!entries_.empty()) return entries_.back().draft.version;
  if (committed_.has_value()) return committed_->record.version;
  return std::nullopt;
}

std::optional<std::uint64_t> Pipeline::newest_step() const {
  if (!entries_.empty()) return entries_.back().draft.step;
  if (committed_.has_value()) return committed_->record.step;
  return std::nullopt;
}

Admission Pipeline::Admit() {
  Admission admission;
  admission.stopped = stopped_;
  admission.full = entries_.size() >= options_.max_versions || entry_bytes_ >= options_.max_bytes;
  failed_since_admit_ = false;
  admission.empty = entries_.empty();
  admission.newest_version = newest_version();
  admission.newest_step = newest_step();
  if (!entries_.empty()) {
    admission.newest_state = entries_.back().draft.state;
    admission.newest_layout = entries_.back().layout_hash;
  } else if (committed_.has_value()) {
    admission.newest_state = committed_->record.state;
    admission.newest_layout = committed_->record.layout;
    admission.newest_record = committed_;
  }
  admission.safe = committed_.has_value() ? committed_->record.version : 0;
  if (!safe_when_committed_) {
    for (const Entry& entry : entries_) {
      if (entry.spooled) admission.safe = entry.draft.version;
    }
  }
  return admission;
}

Ticket Pipeline::Enqueue(Draft draft, MonotonicTime now) {
  auto ticket = std::make_shared<TicketStatus>();
  ticket->version = draft.version;
  ticket->step = draft.step;
  ticket->changed = draft.changed;
  ticket->bytes = draft.part != nullptr ? draft.part->size_bytes() : 0;
  ticket->Reach(TicketStage::kQueued, now);
  if (stopped_.has_value() || failed_since_admit_) {
    ticket->Reach(TicketStage::kFailed, now);
    ticket->error = stopped_.has_value() ? *stopped_
                                         : Error(ErrorCode::kIo,
                                                 "the version before it could not be spooled; "
                                                 "publish again");
    return ticket;
  }
  WW_CHECK(draft.version == (newest_version().has_value() ? *newest_version() + 1 : 0));
  const bool first = entries_.empty() && !committed_.has_value();
  const Sha256Digest* layout_before = nullptr;
  std::uint64_t delta_bytes_before = 0;
  if (!entries_.empty()) {
    layout_before = &entries_.back().layout_hash;
    delta_bytes_before = entries_.back().delta_bytes;
  } else if (!first) {
    layout_before = &committed_->record.layout;
    delta_bytes_before = committed_->record.delta_bytes;
  }
  Entry entry;
  entry.ticket = ticket;
  entry.layout_hash = draft.layout->hash();
  entry.part_bytes = ticket->bytes;
  entry.delta_bytes = delta_bytes_before + entry.part_bytes;
  if (first || *layout_before != entry.layout_hash) entry.new_layout = draft.layout;
  entry.draft = std::move(draft);
  entry_bytes_ += entry.part_bytes;
  PlanAnchor(entry);
  // Only versions without a delta need theirs from now on; the others' is with the anchor, if one was planned.
  if (entry.draft.has_delta) entry.draft.pin.reset();
  entries_.push_back(std::move(entry));
  return ticket;
}

void Pipeline::PlanAnchor(const Entry& entry) {
  if (!entry.draft.has_delta || anchor_.has_value() || NeedsAnchor() != nullptr) return;
  const AnchorPolicy policy{options_.anchor_every, options_.anchor_percent};
  const std::uint64_t model_bytes = entry.draft.layout->total_bytes();
  if (entry.draft.version < no_anchor_before_) return;
  if (!IsAnchorDue(policy, newest_anchor_, entry.draft.version, entry.delta_bytes, model_bytes)) return;
  anchor_ = Anchor{};
  anchor_->version = entry.draft.version;
  anchor_->state = entry.draft.state;
  anchor_->delta_bytes = entry.delta_bytes;
  anchor_->pin = entry.draft.pin;
}

// --- the lanes ---

Pipeline::Entry* Pipeline::NeedsAnchor() {
  const auto found = std::ranges::find_if(
      entries_, [](const Entry& entry) { return !entry.draft.has_delta && !entry.known && !entry.own_anchor; });
  return found == entries_.end() ? nullptr : &*found;
}

Pipeline::Entry* Pipeline::Find(Version version) {
  const auto found = std::ranges::find(entries_, version, [](const Entry& entry) { return entry.draft.version; });
  return found == entries_.end() ? nullptr : &*found;
}

bool Pipeline::AnchorMayStart() const {
  return anchor_.has_value() &&
         (anchor_->required || (committed_.has_value() && committed_->record.version >= anchor_->version));
}

std::optional<Job> Pipeline::Next(Lane lane, MonotonicTime now) {
  if (lane == Lane::kAnchor && !anchor_busy_ && !dropped_.empty()) {
    AnchorJob job;
    job.writer = std::move(dropped_.back());
    job.give_up = true;
    dropped_.pop_back();
    anchor_busy_ = true;
    return job;
  }
  if (stopped_.has_value()) return std::nullopt;
  if (lane == Lane::kSpool) return NextSpool();
  return lane == Lane::kUpload ? NextUpload(now) : NextAnchor(now);
}

std::optional<Job> Pipeline::NextSpool() {
  if (spool_busy_) return std::nullopt;
  const auto entry = std::ranges::find_if(entries_, [](const Entry& e) { return !e.known.has_value(); });
  if (entry == entries_.end()) return std::nullopt;
  if (!entry->draft.has_delta && !entry->own_anchor.has_value()) return std::nullopt;
  const Draft& draft = entry->draft;
  SpoolJob job;
  Record& record = job.record;
  record.run = run_;
  record.version = draft.version;
  record.step = draft.step;
  record.time = draft.time;
  record.writer = writer_;
  record.layout = entry->layout_hash;
  record.state = draft.state;
  record.changed = draft.changed;
  record.chain = draft.version;
  const KnownRecord* parent = nullptr;
  if (entry != entries_.begin()) {
    parent = &*std::prev(entry)->known;
  } else if (committed_.has_value()) {
    parent = &*committed_;
  }
  if (parent != nullptr) {
    record.parent = parent->hash;
    job.delta_bytes_before = parent->record.delta_bytes;
    if (draft.has_delta) record.chain = parent->record.chain;
  }
  if (draft.has_delta) {
    record.delta.emplace();
    if (newest_anchor_.has_value()) record.anchor = newest_anchor_->Ref();
  } else {
    record.anchor = entry->own_anchor;
  }
  job.part = draft.part;
  job.new_layout = entry->new_layout;
  spool_busy_ = true;
  return job;
}

std::optional<Job> Pipeline::NextUpload(MonotonicTime now) {
  if (upload_busy_ || entries_.empty()) return std::nullopt;
  Entry& entry = entries_.front();
  if (!entry.spooled || (entry.due.has_value() && *entry.due > now)) return std::nullopt;
  UploadJob job;
  job.known = *entry.known;
  job.record_json = entry.record_json;
  job.part = entry.draft.part;
  job.new_layout = entry.new_layout;
  job.again = entry.again;
  entry.again = true;
  entry.due.reset();
  if (entry.ticket->stage != TicketStage::kUploading) entry.ticket->Reach(TicketStage::kUploading, now);
  upload_busy_ = true;
  return job;
}

std::optional<Job> Pipeline::NextAnchor(MonotonicTime now) {
  if (anchor_busy_) return std::nullopt;
  if (Entry* entry = NeedsAnchor(); entry != nullptr && (!anchor_.has_value() || !anchor_->required)) {
    // Nothing can be published before this one; another anchor gives way.
    DropAnchor();
    anchor_ = Anchor{};
    anchor_->version = entry->draft.version;
    anchor_->state = entry->draft.state;
    anchor_->delta_bytes = entry->delta_bytes;
    anchor_->pin = entry->draft.pin;
    anchor_->required = true;
    entry->ticket->Reach(TicketStage::kUploading, now);
  }
  if (!AnchorMayStart() || (anchor_->due.has_value() && *anchor_->due > now)) return std::nullopt;
  anchor_->due.reset();
  if (anchor_->writer != nullptr && now - anchor_->begun > options_.anchor_age) {
    dropped_.push_back(std::move(anchor_->writer));
    return Next(Lane::kAnchor, now);
  }
  if (anchor_->writer == nullptr) {
    anchor_->begun = now;
    anchor_->writer = make_anchor_writer_(anchor_->version, anchor_->state, anchor_->delta_bytes, anchor_->pin);
  }
  anchor_busy_ = true;
  AnchorJob job;
  job.writer = anchor_->writer;
  return job;
}

void Pipeline::Finish(Job job, MonotonicTime now) {
  if (auto* spool = std::get_if<SpoolJob>(&job)) {
    FinishSpool(std::move(*spool), now);
  } else if (auto* upload = std::get_if<UploadJob>(&job)) {
    FinishUpload(std::move(*upload), now);
  } else {
    FinishAnchor(std::move(std::get<AnchorJob>(job)), now);
  }
}

void Pipeline::FinishSpool(SpoolJob job, MonotonicTime now) {
  spool_busy_ = false;
  Entry* const entry = Find(job.record.version);
  if (entry == nullptr) return;  // stopped meanwhile
  if (!job.status.ok()) {
    FailFrom(static_cast<std::size_t>(job.record.version - entries_.front().draft.version), job.status.error(), now);
    return;
  }
  entry->record_json = std::move(job.record_json);
  entry->known = KnownRecord{std::move(job.record), Sha256Of(entry->record_json)};
  entry->spooled = true;
  if (has_spool_) entry->draft.part.reset();
  entry->draft.pin.reset();
  entry->ticket->Reach(TicketStage::kSpooled, now);
}

void Pipeline::FinishUpload(UploadJob job, MonotonicTime now) {
  upload_busy_ = false;
  if (entries_.empty() || entries_.front().draft.version != job.known.record.version) return;
  Entry& entry = entries_.front();
  switch (job.outcome) {
    case UploadJob::Outcome::kCommitted:
      committed_ = std::move(job.known);
      last_error_.reset();
      entry.ticket->error.reset();
      entry.ticket->Reach(TicketStage::kCommitted, now);
      entry_bytes_ -= entry.part_bytes;
      entries_.pop_front();
      return;
    case UploadJob::Outcome::kStopped:
      Stop(*job.error, now);
      return;
    case UploadJob::Outcome::kTakenForFailed:
      FailFrom(0, *job.error, now);
      return;
    case UploadJob::Outcome::kError:
      entry.due = now + Pause(*job.error, entry.attempts++);
      entry.ticket->error = job.error;
      last_error_ = job.error;
      return;
  }
}

void Pipeline::FinishAnchor(AnchorJob job, MonotonicTime now) {
  anchor_busy_ = false;
  if (job.give_up) return;
  if (!anchor_.has_value() || anchor_->writer != job.writer) return;  // dropped meanwhile
  Entry* const entry = anchor_->required ? Find(anchor_->version) : nullptr;
  if (job.complete) {
    newest_anchor_ = job.writer->anchor();
    if (entry != nullptr) {
      entry->own_anchor = newest_anchor_->Ref();
      entry->ticket->error.reset();
      last_error_.reset();
    }
    anchor_error_.reset();
    anchors_given_up_ = 0;
    no_anchor_before_ = 0;
    anchor_.reset();
    return;
  }
  if (!job.error.has_value()) {
    anchor_->attempts = 0;
    return;
  }
  if (job.error->code() == ErrorCode::kMismatch) {
    // Its bits are not to be had any more. One by policy is planned again later; the more often it was in vain, the
    // later, for all that was sent of it is lost.
    const Version version = anchor_->version;
    anchor_error_ = job.error->In(fmt::format(
        "the anchor of version {} is given up, for versions come faster than it is sent; let `weightwire anchor` write "
        "it on a machine near the bucket, or publish less often",
        version));
    DropAnchor();
    if (entry == nullptr) {
      anchors_given_up_ = std::min(anchors_given_up_ + 1, kMostAnchorDoublings);
      no_anchor_before_ = newest_version().value_or(version) + (kAnchorPauseVersions << anchors_given_up_);
    } else {
      FailFrom(static_cast<std::size_t>(version - entries_.front().draft.version), *job.error, now);
    }
    return;
  }
  anchor_->due = now + Pause(*job.error, anchor_->attempts++);
  anchor_error_ = job.error;
  if (entry != nullptr) {
    entry->ticket->error = job.error;
    last_error_ = job.error;
  }
}

std::optional<MonotonicTime> Pipeline::Due(Lane lane) const {
  if (stopped_.has_value()) return std::nullopt;
  if (lane == Lane::kUpload && !upload_busy_ && !entries_.empty()) return entries_.front().due;
  if (lane == Lane::kAnchor && !anchor_busy_ && AnchorMayStart()) return anchor_->due;
  return std::nullopt;
}

MonotonicTime Pipeline::Pause(const Error& error, int attempts) const {
  switch (error.code()) {
    case ErrorCode::kUnavailable:
    case ErrorCode::kUnknownOutcome:
    case ErrorCode::kCorrupt:
    case ErrorCode::kIo:
      return std::min(options_.last_pause, options_.first_pause * (std::int64_t{1} << std::min(attempts, 20)));
    default:
      return options_.slow_pause;
  }
}

void Pipeline::FailFrom(std::size_t index, const Error& why, MonotonicTime now) {
  const Version first = entries_[index].draft.version;
  for (std::size_t i = index; i < entries_.size(); ++i) {
    entries_[i].ticket->error = why;
    entries_[i].ticket->Reach(TicketStage::kFailed, now);
    entry_bytes_ -= entries_[i].part_bytes;
  }
  entries_.resize(index);
  failed_since_admit_ = true;
  if (anchor_.has_value() && anchor_->version >= first) DropAnchor();
}

void Pipeline::DropAnchor() {
  if (anchor_.has_value() && anchor_->writer != nullptr) dropped_.push_back(std::move(anchor_->writer));
  anchor_.reset();
}

void Pipeline::Stop(const Error& why, MonotonicTime now) {
  stopped_ = why;
  FailFrom(0, why, now);
  DropAnchor();
}

PipelineStatus Pipeline::status() const {
  PipelineStatus status;
  if (committed_.has_value()) status.committed = committed_->record.version;
  status.versions_waiting = entries_.size();
  status.bytes_waiting = entry_bytes_;
  status.last_error = last_error_;
  status.stopped = stopped_;
  if (AnchorMayStart()) {
    status.anchor_in_work = anchor_->version;
  }
  if (newest_anchor_.has_value()) status.newest_anchor = newest_anchor_->Ref();
  status.anchor_error = anchor_error_;
  return status;
}

}  // namespace weightwire
