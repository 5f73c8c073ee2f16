#include "publish/publisher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "publish/sooner.h"

namespace weightwire {
namespace {

constexpr std::size_t kMaxWarnings = 1000;

Error NotPublishedBefore() {
  return {ErrorCode::kUnavailable, "the version before it was not published; publish again"};
}

}  // namespace

// --- the caller's side ---

std::vector<const Publisher::Entry*> Publisher::Live() const {
  std::vector<const Entry*> live;
  for (const Entry& entry : entries_) {
    if (entry.in_base) live.push_back(&entry);
  }
  return live;
}

Admission Publisher::Admit() const {
  Admission admission;
  admission.stopped = stopped_;
  admission.disconnected = disconnected();
  const std::vector<const Entry*> live = Live();
  admission.empty = live.empty();
  admission.full = live.size() >= options_.max_versions || entry_bytes_ >= options_.max_bytes;
  // A base is rebuilt from what is committed: with versions in flight the caller waits for them.
  if (!maker_->holds_base() && !live.empty()) admission.full = true;
  if (recovering_ && !entries_.empty()) admission.full = true;
  admission.newest_serial = newest_serial_;
  admission.safe = newest_serial_.value_or(0);
  if (live.empty()) {
    admission.newest = newest_;
    if (newest_.has_value()) admission.newest_step = newest_->record.step;
  } else {
    admission.newest_serial = live.back()->draft.serial;
    admission.newest_step = live.back()->draft.step;
  }
  for (const Entry* entry : live) {
    if (entry->decided) admission.safe = entry->draft.serial;
    if (entry->draft.layout != nullptr) admission.newest_layout = entry->draft.layout->hash();
  }
  if (!admission.newest_layout.has_value() && newest_.has_value()) admission.newest_layout = newest_->record.layout;
  admission.whole = whole_next_;
  admission.epoch = epoch_;
  return admission;
}

Ticket Publisher::Skip(std::uint64_t step) const {
  auto ticket = std::make_shared<TicketStatus>();
  ticket->step = step;
  ticket->Reach(TicketStage::kSkipped, Now());
  return ticket;
}

Ticket Publisher::Refuse(std::uint64_t step, const Error& why) {
  Draft draft;
  draft.step = step;
  draft.error = why;
  return Enqueue(std::move(draft));
}

Ticket Publisher::Enqueue(Draft draft) {
  const MonotonicTime now = Now();
  if (!draft.note.empty() && warnings_.size() < kMaxWarnings) warnings_.push_back(std::move(draft.note));
  auto ticket = std::make_shared<TicketStatus>();
  ticket->step = draft.step;
  if (draft.nothing_new) {
    ticket->version = draft.serial;
    ticket->Reach(TicketStage::kAlreadyPublished, now);
    return ticket;
  }
  ticket->changed = draft.changed;
  if (!draft.whole && !draft.error.has_value()) ticket->delta_bytes = draft.part_bytes();
  ticket->Reach(TicketStage::kQueued, now);
  if (!draft.error.has_value() && draft.epoch != epoch_) draft.error = NotPublishedBefore();
  // Only ranks count calls that have failed.
  if (stopped_.has_value() || (draft.error.has_value() && board_ == nullptr)) {
    ticket->error = stopped_.has_value() ? stopped_ : draft.error;
    ticket->Reach(TicketStage::kFailed, now);
    return ticket;
  }
  // As far as can be told now: of several ranks, a call before it may turn out to add nothing.
  if (!draft.error.has_value()) ticket->version = next_version() + Live().size();
  Entry& entry = entries_.emplace_back(next_call_++, options_.retry);
  entry.ticket = ticket;
  entry.in_base = !draft.error.has_value();
  entry.part_bytes = draft.part_bytes();
  entry_bytes_ += entry.part_bytes;
  if (draft.whole) {
    whole_next_ = false;
    // The base was replaced, so an anchor of an earlier version cannot be read any more.
    if (board_ == nullptr) DropTask();
  }
  entry.draft = std::move(draft);
  // The connection was lost while it was made: it counts, but is not waited for.
  if (disconnected().has_value()) FailTickets(*disconnected());
  Exchange();
  return ticket;
}

Result<std::optional<Ticket>> Publisher::Publish(const StateBits& bits, std::uint64_t step) {
  const Admission admission = Admit();
  if (admission.stopped.has_value()) return *admission.stopped;
  std::optional<Draft> draft;
  if (!admission.full) {
    WW_TRY(draft, Make(bits, step, admission));
  }
  if (draft.has_value()) return std::optional(Enqueue(*std::move(draft)));
  if (options_.skip_when_full) return std::optional(Skip(step));
  return std::optional<Ticket>();
}

// --- contributions and verdicts ---

Publisher::Entry* Publisher::Find(std::uint64_t call) {
  const auto found = std::ranges::find(entries_, call, &Entry::call);
  return found == entries_.end() ? nullptr : &*found;
}

bool Publisher::Exchange() {
  bool any = false;
  for (bool moved = true; moved;) {
    moved = false;
    while (const auto verdict = board_ != nullptr ? board_->TakeVerdict(Now()) : committer_->TakeVerdict()) {
      TakeVerdict(*verdict);
      moved = true;
    }
    moved = SendReady() || moved;
    any = any || moved;
  }
  return any;
}

bool Publisher::SendReady() {
  bool sent = false;
  for (Entry& entry : entries_) {
    if (board_ != nullptr) {
      // Ranks work on one call at a time.
      board_->Await(entry.call);
      if (!entry.sending.progress.has_value()) entry.sending.progress = Now();
    }
    if (!entry.sent) {
      if (!IsReady(entry)) break;
      Send(entry);
      sent = true;
    }
    if (board_ != nullptr) break;
  }
  return sent;
}

bool Publisher::IsReady(const Entry& entry) const {
  if (entry.sending.busy) return false;
  const Draft& draft = entry.draft;
  if (draft.error.has_value()) return true;
  if (draft.whole) return entry.share_complete;
  // The committer sends the part of a single process.
  return board_ == nullptr || draft.part == nullptr || entry.put.has_value();
}

void Publisher::Send(Entry& entry) {
  const Draft& draft = entry.draft;
  Contribution contribution;
  CallContext context{draft.time, draft.layout, draft.layout_before, {}, {}};
  if (draft.error.has_value()) {
    contribution.error = draft.error;
    contribution.needs_rebase = draft.needs_rebase;
    contribution.step = draft.step;
  } else {
    static_cast<RankChange&>(contribution) = draft;
    contribution.layout = draft.layout->hash();
    if (draft.shards != nullptr) contribution.shards = ToText(*draft.shards);
    contribution.part = entry.put;
    if (board_ == nullptr) {
      context.part = draft.part;
      if (draft.whole) context.anchor = static_cast<const AnchorWriter&>(*entry.sending.share).anchor();
    } else if (draft.whole) {
      contribution.piece = static_cast<const PieceWriter&>(*entry.sending.share).piece();
    }
  }
  if (committer_.has_value()) committer_->SetContext(entry.call, std::move(context));
  entry.sent = true;
  if (board_ != nullptr) {
    board_->Send(entry.call, contribution, Now());
  } else {
    committer_->Take(entry.call, {std::move(contribution)}, Now());
  }
}

void Publisher::TakeVerdict(const Verdict& verdict) {
  const auto found = std::ranges::find(entries_, verdict.call, &Entry::call);
  WW_CHECK(found != entries_.end());
  const auto index = static_cast<std::size_t>(found - entries_.begin());
  Entry entry = std::move(*found);
  entries_.erase(found);
  entry_bytes_ -= entry.part_bytes;
  last_error_.reset();
  next_anchor_ = verdict.next_anchor;
  recovering_ = board_ != nullptr && verdict.outcome == Verdict::Outcome::kFailed;
  TicketStatus& ticket = *entry.ticket;
  switch (verdict.outcome) {
    case Verdict::Outcome::kCommitted:
      return TakeCommitted(std::move(entry), verdict);
    case Verdict::Outcome::kSame:
      newest_serial_ = entry.draft.serial;
      ticket.version = newest_->record.version;
      if (ticket.IsFinal()) return;
      ticket.error.reset();
      ticket.Reach(TicketStage::kAlreadyPublished, Now());
      return;
    case Verdict::Outcome::kFailed:
    case Verdict::Outcome::kStopped:
      ticket.error = verdict.error;
      if (!ticket.IsFinal()) ticket.Reach(TicketStage::kFailed, Now());
      if (entry.sending.share != nullptr) dropped_.push_back(std::move(entry.sending.share));
      whole_next_ = verdict.rebase;
      if (verdict.outcome == Verdict::Outcome::kStopped) {
        stopped_ = verdict.error;
        FailTickets(*stopped_);
      } else if (entry.in_base) {
        ++epoch_;
        FailFrom(index, *verdict.error);
      }
  }
}

void Publisher::TakeCommitted(Entry entry, const Verdict& verdict) {
  TicketStatus& ticket = *entry.ticket;
  auto record = ParseRecord(verdict.record_json);
  if (!record.ok() || entry.draft.error.has_value()) {
    stopped_ = Error(ErrorCode::kMismatch, "rank 0 has committed a version that this rank has no part in");
    ticket.error = stopped_;
    ticket.Reach(TicketStage::kFailed, Now());
    return FailTickets(*stopped_);
  }
  newest_ = KnownRecord{std::move(record).value(), Sha256Of(BytesOf(verdict.record_json))};
  newest_serial_ = entry.draft.serial;
  ticket.version = newest_->record.version;
  // Now of all ranks.
  ticket.delta_bytes.reset();
  if (newest_->record.delta.has_value()) {
    ticket.delta_bytes = newest_->record.OwnDeltaBytes();
  } else if (newest_->record.anchor.has_value()) {
    ticket.anchor_bytes = newest_->record.anchor->bytes;
  }
  ticket.changed = newest_->record.changed;
  if (!ticket.IsFinal()) {
    ticket.error.reset();
    ticket.Reach(TicketStage::kCommitted, Now());
  }
  if (verdict.anchor.has_value()) StartTask(entry, newest_->record, *verdict.anchor);
}

void Publisher::FailFrom(std::size_t index, const Error& why) {
  for (std::size_t i = index; i < entries_.size(); ++i) {
    Entry& later = entries_[i];
    if (!later.in_base) continue;
    later.in_base = false;
    later.draft.error = NotPublishedBefore();
    entry_bytes_ -= std::exchange(later.part_bytes, 0);
    later.draft.part.reset();
    later.draft.pin.reset();
    if (board_ != nullptr) continue;  // the call still counts, and gets its verdict
    later.ticket->error = why;
    later.ticket->Reach(TicketStage::kFailed, Now());
  }
  if (board_ == nullptr) entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(index), entries_.end());
}

void Publisher::FailTickets(const Error& why) {
  for (const Entry& entry : entries_) {
    if (entry.ticket->IsFinal()) continue;
    entry.ticket->error =
        stopped_.has_value()
            ? why
            : Error(ErrorCode::kUnknownOutcome,
                    fmt::format("{}: call {} of publish may be committed or not", why.message(), entry.call));
    entry.ticket->Reach(TicketStage::kFailed, Now());
  }
  if (!stopped_.has_value()) return;
  entries_.clear();
  entry_bytes_ = 0;
  DropTask();
}

// --- the board ---

void Publisher::Deliver(const std::string& key, const std::string& text) {
  board_->Deliver(key, text, Now());
  if (task_.has_value() && board_->PieceEnded()) DropTask();
  Exchange();
}

std::optional<Error> Publisher::disconnected() const {
  return board_ != nullptr ? board_->disconnected() : std::nullopt;
}

void Publisher::SetDisconnected(const Error& why) {
  board_->SetDisconnected(why);
  FailTickets(why);
}

void Publisher::SetConnected() {
  board_->SetConnected(Now());
  if (!entries_.empty() && entries_.front().sending.progress.has_value()) entries_.front().sending.progress = Now();
}

bool Publisher::Tick() {
  if (board_ == nullptr) return false;
  const bool was_connected = !disconnected().has_value();
  bool changed = board_->Tick(Now());
  if (was_connected && disconnected().has_value()) FailTickets(*disconnected());
  if (const auto heartbeat = HeartbeatDue(); heartbeat.has_value() && Now() >= *heartbeat) {
    board_->SendHeartbeat(Now());
    changed = true;
  }
  return Exchange() || changed;
}

// Shares are sent in steps, with heartbeats in between. A part is sent in one.
std::optional<MonotonicTime> Publisher::HeartbeatDue() const {
  if (board_ == nullptr || entries_.empty()) return std::nullopt;
  const Entry& front = entries_.front();
  if (!front.sending.busy || front.draft.part == nullptr) return std::nullopt;
  const std::chrono::seconds slowest(front.draft.part->size_bytes() / options_.group->slowest_bytes_per_second);
  const MonotonicTime heartbeat = board_->HeartbeatDue(front.sending.begun);
  return heartbeat < front.sending.begun + board_->deadline() + slowest ? std::optional(heartbeat) : std::nullopt;
}

// --- status ---

bool Publisher::idle() const {
  const bool writes = task_.has_value() && task_->share != nullptr;
  if (!entries_.empty() || writes || !dropped_.empty()) return false;
  return board_ != nullptr ? board_->idle() : committer_->idle();
}

PublisherStatus Publisher::status() const {
  PublisherStatus status;
  if (newest_.has_value()) status.version = newest_->record.version;
  status.pending_versions = entries_.size();
  status.pending_bytes = entry_bytes_;
  status.fatal_error = stopped_;
  status.warnings = warnings_;
  status.last_error = last_error_.has_value() ? last_error_ : disconnected();
  if (!entries_.empty() && entries_.front().draft.whole && !entries_.front().sent) {
    status.anchor_in_progress = next_version();
  }
  if (!committer_.has_value()) return status;
  if (!status.last_error.has_value()) status.last_error = committer_->last_error();
  if (committer_->anchor_in_work().has_value()) status.anchor_in_progress = committer_->anchor_in_work()->name.version;
  if (committer_->newest_anchor().has_value()) status.anchor = committer_->newest_anchor()->Ref();
  status.anchor_error = committer_->anchor_error();
  return status;
}

}  // namespace weightwire
