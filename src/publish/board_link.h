// The link from one of several ranks to the committer: a board, which is a map from keys to texts that all ranks can
// read (board_messages.h). The runner asks which keys are wanted, and delivers them; how texts travel is its business.
//
// A rank that works on something for long sends heartbeats, and so does rank 0 for a verdict. A rank that hears nothing
// of the verdict for the deadline is disconnected: it publishes nothing until it is connected again, and drops nothing,
// because the version may be committed.
//
// In rank 0's process the link also serves the other side of the board (board_host.h).
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "publish/board_host.h"
#include "publish/board_messages.h"
#include "publish/policy.h"
#include "publish/sooner.h"

namespace weightwire {

class BoardLink {
 public:
  // `host` is rank 0's, and none on other ranks. It and the outbox, which is the host's too, must outlive the link.
  BoardLink(std::uint64_t rank, MonotonicTime deadline, BoardHost* host, BoardOutbox& outbox)
      : rank_(rank), deadline_(deadline), host_(host), outbox_(outbox) {}

  // The oldest call without a verdict: its verdict is wanted from now on, whether or not its contribution is sent.
  void Await(std::uint64_t call);
  // Sends what this rank contributes to a call. Calls are sent in order, each once.
  void Send(std::uint64_t call, const Contribution& contribution, MonotonicTime now);
  // The next verdict that has arrived, if any.
  std::optional<Verdict> TakeVerdict(MonotonicTime now);

  // --- the board ---
  [[nodiscard]] std::vector<std::string> Wanted() const;
  void Deliver(const std::string& key, const std::string& text, MonotonicTime now);

  [[nodiscard]] bool idle() const { return outbox_.outgoing.empty() && (host_ == nullptr || host_->idle()); }

  // --- the connection ---
  [[nodiscard]] const std::optional<Error>& disconnected() const { return disconnected_; }
  void SetDisconnected(const Error& why) { disconnected_ = why; }
  void SetConnected(MonotonicTime now);
  // Looks at the time, and returns true if that changed anything.
  bool Tick(MonotonicTime now);
  [[nodiscard]] std::optional<MonotonicTime> TickDue() const;

  // --- heartbeats ---
  void SendHeartbeat(MonotonicTime now);
  // When the next heartbeat of work that began at `since` is due.
  [[nodiscard]] MonotonicTime HeartbeatDue(MonotonicTime since) const;
  // A rank stops retrying after this time, so that it reports its error before rank 0 declares it dead.
  [[nodiscard]] MonotonicTime retry_limit() const { return deadline_ / 100 * kRankRetryPercent; }
  [[nodiscard]] MonotonicTime deadline() const { return deadline_; }

  // --- this rank's piece of an anchor by policy ---
  void BeginPiece(const Id& anchor, MonotonicTime now);
  void SendPieceProgress(MonotonicTime now);  // a heartbeat, if one is due
  void SendPiece(const PieceReport& report);
  // Rank 0 has completed or abandoned the anchor, or another one has begun.
  [[nodiscard]] bool PieceEnded() const { return !piece_.has_value(); }

 private:
  struct Piece {
    Id anchor;
    bool sent = false;
    std::uint64_t heartbeats = 0;
    MonotonicTime last_heartbeat{0};
  };
  void EndPiece();
  [[nodiscard]] MonotonicTime interval() const;

  const std::uint64_t rank_;
  const MonotonicTime deadline_;
  BoardHost* const host_;
  BoardOutbox& outbox_;

  std::optional<std::uint64_t> awaited_;  // the call whose verdict is wanted
  std::optional<MonotonicTime> heard_;    // once its contribution is sent: then, or the last heartbeat of rank 0 since
  std::uint64_t heartbeats_ = 0;          // of this rank, for that call
  std::uint64_t heartbeats_heard_ = 0;    // of rank 0
  MonotonicTime last_heartbeat_{0};
  std::deque<Verdict> verdicts_;
  std::optional<Error> disconnected_;
  std::optional<Piece> piece_;
};

}  // namespace weightwire
