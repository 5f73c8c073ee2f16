#include "publish/board_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "publish/sooner.h"

namespace weightwire {

BoardHost::BoardHost(Run run, const PublisherOptions& options, AnchorOptions anchors, Committer& committer,
                     BoardOutbox& outbox)
    : run_(run.id()),
      options_(*options.group),
      committer_(committer),
      outbox_(outbox),
      pieces_(std::move(run), options, std::move(anchors), committer, outbox),
      reports_(options_.ranks),
      watch_(fmt::to_string(call_), options_.ranks) {}

GroupStart BoardHost::Start() const {
  GroupStart start;
  start.run = run_;
  start.next_anchor = committer_.next_anchor();
  if (committer_.newest().has_value()) {
    start.newest = committer_.newest()->record.version;
    start.record_hash = committer_.newest()->hash;
  }
  return start;
}

// --- the board ---

std::vector<std::string> BoardHost::Wanted() const {
  std::vector<std::string> keys = pieces_.Wanted();
  for (const auto& [call, unacked] : unacked_) {
    for (std::uint64_t rank = 0; rank < options_.ranks; ++rank) {
      if (!unacked.seen[rank]) keys.push_back(SeenKey(call, rank));
    }
  }
  for (std::uint64_t rank = 0; rank < options_.ranks && !taken_ && !committer_.stopped(); ++rank) {
    if (watch_.HasReported(rank)) continue;
    keys.push_back(ReportKey(call_, rank));
    keys.push_back(watch_.HeartbeatKey(rank));
  }
  return keys;
}

void BoardHost::Deliver(const std::string& key, const std::string& text, MonotonicTime now) {
  pieces_.Deliver(key, text, now);
  for (std::uint64_t rank = 0; rank < options_.ranks && !taken_; ++rank) {
    if (key == watch_.HeartbeatKey(rank)) {
      watch_.CountHeartbeat(rank, now);
      return SendHeartbeat();
    }
    if (key == ReportKey(call_, rank) && !watch_.HasReported(rank)) return DeliverReport(rank, text, now);
  }
  DeliverSeen(key);
}

void BoardHost::DeliverReport(std::uint64_t rank, const std::string& text, MonotonicTime now) {
  auto report = ParseContribution(text);
  if (!report.ok()) {
    return committer_.Fail(call_, report.error().In(fmt::format("the report of rank {}", rank)), /*rebase=*/false);
  }
  watch_.Report(rank, now);
  reports_[rank] = std::move(report).value();
  if (const std::optional<Error>& error = reports_[rank].error; error.has_value()) {
    return committer_.Fail(call_, error->In(fmt::format("rank {}", rank)), reports_[rank].needs_rebase);
  }
  if (!watch_.AllReported()) return;
  committer_.Take(call_, std::move(reports_), now);
  taken_ = true;
  // A rank that reported first has waited for the last one, and now waits for the store.
  SendHeartbeat();
}

void BoardHost::DeliverSeen(const std::string& key) {
  for (auto& [call, unacked] : unacked_) {
    for (std::uint64_t rank = 0; rank < options_.ranks; ++rank) {
      if (key != SeenKey(call, rank)) continue;
      unacked.seen[rank] = true;
      if (!std::ranges::all_of(unacked.seen, [](bool seen) { return seen; })) return;
      outbox_.unneeded.insert(outbox_.unneeded.end(), unacked.keys.begin(), unacked.keys.end());
      unacked_.erase(call);
      return;
    }
  }
}

// --- verdicts ---

void BoardHost::SendHeartbeat() {
  outbox_.outgoing.push_back({AliveKey(fmt::to_string(call_), std::nullopt, heartbeats_++), "1"});
}

void BoardHost::PublishVerdicts(MonotonicTime now) {
  if (committer_.TakeProgress()) SendHeartbeat();
  while (auto verdict = committer_.TakeVerdict()) Publish(*verdict, now);
  pieces_.Follow(now);
}

void BoardHost::Publish(const Verdict& verdict, MonotonicTime now) {
  outbox_.outgoing.push_back({VerdictKey(call_), ToJson(verdict)});
  Unacked unacked;
  unacked.seen.resize(options_.ranks);
  unacked.at = now;
  unacked.keys.push_back(VerdictKey(call_));
  for (std::uint64_t rank = 0; rank < options_.ranks; ++rank) {
    unacked.keys.push_back(ReportKey(call_, rank));
    unacked.keys.push_back(SeenKey(call_, rank));
  }
  for (std::uint64_t i = 0; i < heartbeats_; ++i) {
    unacked.keys.push_back(AliveKey(fmt::to_string(call_), std::nullopt, i));
  }
  unacked_.emplace(call_, std::move(unacked));
  ++call_;
  taken_ = false;
  reports_.assign(options_.ranks, {});
  watch_ = RankWatch(fmt::to_string(call_), options_.ranks);
  heartbeats_ = 0;
}

bool BoardHost::Tick(MonotonicTime now) {
  bool changed = committer_.Tick(now);
  if (const auto time_out = CallTimesOut(); time_out.has_value() && now >= *time_out) {
    committer_.Fail(call_, watch_.SilentError(patience(), now), /*rebase=*/false);
    changed = true;
  }
  changed = pieces_.Tick(now) || changed;
  for (auto& [call, unacked] : unacked_) {
    if (unacked.late || now - unacked.at <= options_.deadline) continue;
    unacked.late = true;
    changed = true;
  }
  while (unacked_.size() > kMaxUnackedVerdicts) {
    const std::vector<std::string>& keys = unacked_.begin()->second.keys;
    outbox_.unneeded.insert(outbox_.unneeded.end(), keys.begin(), keys.end());
    unacked_.erase(unacked_.begin());
  }
  return changed;
}

std::optional<MonotonicTime> BoardHost::CallTimesOut() const {
  const auto silent = taken_ ? std::nullopt : watch_.SilentSince();
  return silent.has_value() ? std::optional(*silent + patience() + std::chrono::milliseconds(1)) : std::nullopt;
}

std::optional<MonotonicTime> BoardHost::TickDue() const {
  std::optional<MonotonicTime> due = CallTimesOut();
  for (const auto& [call, unacked] : unacked_) {
    if (!unacked.late) due = Sooner(due, unacked.at + options_.deadline + std::chrono::milliseconds(1));
  }
  return due;
}

bool BoardHost::idle() const {
  return !taken_ && !watch_.begun() && pieces_.idle() && committer_.idle() &&
         std::ranges::all_of(unacked_, [](const auto& unacked) { return unacked.second.late; });
}

}  // namespace weightwire
