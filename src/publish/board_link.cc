#include "publish/board_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace weightwire {

MonotonicTime BoardLink::interval() const { return deadline_ / kHeartbeatsPerDeadline; }

// --- calls ---

void BoardLink::Await(std::uint64_t call) {
  if (awaited_ == call) return;
  awaited_ = call;
  heard_.reset();
  heartbeats_ = 0;
  heartbeats_heard_ = 0;
  last_heartbeat_ = MonotonicTime(0);
}

void BoardLink::Send(std::uint64_t call, const Contribution& contribution, MonotonicTime now) {
  Await(call);
  outbox_.outgoing.push_back({ReportKey(call, rank_), ToJson(contribution)});
  heard_ = now;
}

std::optional<Verdict> BoardLink::TakeVerdict(MonotonicTime now) {
  if (host_ != nullptr) host_->PublishVerdicts(now);
  if (verdicts_.empty()) return std::nullopt;
  Verdict verdict = std::move(verdicts_.front());
  verdicts_.pop_front();
  return verdict;
}

// --- the board ---

std::vector<std::string> BoardLink::Wanted() const {
  std::vector<std::string> keys;
  if (host_ != nullptr) keys = host_->Wanted();
  if (awaited_.has_value()) {
    keys.push_back(VerdictKey(*awaited_));
    if (heard_.has_value()) keys.push_back(AliveKey(fmt::to_string(*awaited_), std::nullopt, heartbeats_heard_));
  }
  if (piece_.has_value()) keys.push_back(EndedKey(piece_->anchor));
  return keys;
}

void BoardLink::Deliver(const std::string& key, const std::string& text, MonotonicTime now) {
  if (host_ != nullptr) host_->Deliver(key, text, now);
  if (piece_.has_value() && key == EndedKey(piece_->anchor)) EndPiece();
  if (!awaited_.has_value()) return;
  if (key == AliveKey(fmt::to_string(*awaited_), std::nullopt, heartbeats_heard_)) {
    ++heartbeats_heard_;
    if (heard_.has_value()) heard_ = now;
  }
  if (key != VerdictKey(*awaited_)) return;
  auto parsed = ParseVerdict(text);
  Verdict verdict;
  if (parsed.ok()) {
    verdict = std::move(parsed).value();
  } else {
    verdict.outcome = Verdict::Outcome::kStopped;
    verdict.error = parsed.error().In("rank 0 said something that is not understood");
  }
  verdict.call = *awaited_;
  verdicts_.push_back(std::move(verdict));
  outbox_.outgoing.push_back({SeenKey(*awaited_, rank_), "1"});
  for (std::uint64_t i = 0; i < heartbeats_; ++i) {
    outbox_.unneeded.push_back(AliveKey(fmt::to_string(*awaited_), rank_, i));
  }
  disconnected_.reset();
  awaited_.reset();
  heard_.reset();
}

// --- the connection ---

void BoardLink::SetConnected(MonotonicTime now) {
  disconnected_.reset();
  if (heard_.has_value()) heard_ = now;
}

bool BoardLink::Tick(MonotonicTime now) {
  bool changed = host_ != nullptr && host_->Tick(now);
  const bool silent =
      heard_.has_value() && !disconnected_.has_value() && now >= *heard_ + deadline_ + std::chrono::milliseconds(1);
  if (!silent) return changed;
  disconnected_ = Error(ErrorCode::kUnavailable,
                        fmt::format("rank 0 has not said within {} s what became of call {} of publish",
                                    std::chrono::duration_cast<std::chrono::seconds>(deadline_).count(), *awaited_));
  return true;
}

std::optional<MonotonicTime> BoardLink::TickDue() const {
  const auto host = host_ != nullptr ? host_->TickDue() : std::nullopt;
  if (!heard_.has_value() || disconnected_.has_value()) return host;
  return Sooner(host, *heard_ + deadline_ + std::chrono::milliseconds(1));
}

// --- heartbeats ---

void BoardLink::SendHeartbeat(MonotonicTime now) {
  last_heartbeat_ = now;
  outbox_.outgoing.push_back({AliveKey(fmt::to_string(*awaited_), rank_, heartbeats_++), "1"});
}

MonotonicTime BoardLink::HeartbeatDue(MonotonicTime since) const {
  return std::max(last_heartbeat_, since) + interval();
}

// --- pieces ---

void BoardLink::BeginPiece(const Id& anchor, MonotonicTime now) {
  EndPiece();
  piece_ = Piece{anchor, false, 0, now};
}

void BoardLink::SendPieceProgress(MonotonicTime now) {
  if (!piece_.has_value() || now - piece_->last_heartbeat <= interval()) return;
  piece_->last_heartbeat = now;
  outbox_.outgoing.push_back({AliveKey(ToHex(piece_->anchor), rank_, piece_->heartbeats++), "1"});
}

void BoardLink::SendPiece(const PieceReport& report) {
  piece_->sent = true;
  outbox_.outgoing.push_back({PieceKey(piece_->anchor, rank_), ToJson(report)});
}

// Its keys are this rank's to remove.
void BoardLink::EndPiece() {
  if (!piece_.has_value()) return;
  if (piece_->sent) outbox_.unneeded.push_back(PieceKey(piece_->anchor, rank_));
  for (std::uint64_t i = 0; i < piece_->heartbeats; ++i) {
    outbox_.unneeded.push_back(AliveKey(ToHex(piece_->anchor), rank_, i));
  }
  piece_.reset();
}

}  // namespace weightwire
