// Rank 0's side of the board: collects the contributions of all ranks for one call after another, passes them to the
// committer, and publishes its verdicts. It belongs to rank 0's process, and hears of the ranks by the board alone.
//
// A rank that sends no heartbeat within the deadline, counted from the first heartbeat of any rank, makes the call fail
// on all ranks. gc later deletes the objects that were uploaded for it.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "publish/board_messages.h"
#include "publish/committer.h"
#include "publish/piece_collector.h"
#include "publish/policy.h"
#include "publish/rank_watch.h"

namespace weightwire {

class BoardHost {
 public:
  // `options` have a group. All that is given by reference must outlive it.
  BoardHost(Run run, const PublisherOptions& options, AnchorOptions anchors, Committer& committer, BoardOutbox& outbox);

  // What the other ranks need to start.
  [[nodiscard]] GroupStart Start() const;

  [[nodiscard]] std::vector<std::string> Wanted() const;
  void Deliver(const std::string& key, const std::string& text, MonotonicTime now);

  // Publishes the verdicts that the committer has given, and tells ranks that wait that it still tries.
  void PublishVerdicts(MonotonicTime now);
  // Looks at the time, and returns true if that changed anything.
  bool Tick(MonotonicTime now);
  [[nodiscard]] std::optional<MonotonicTime> TickDue() const;
  [[nodiscard]] PieceCollector& pieces() { return pieces_; }
  [[nodiscard]] const PieceCollector& pieces() const { return pieces_; }
  // No call is in work, and every rank has read the verdicts, or had the time to.
  [[nodiscard]] bool idle() const;

 private:
  // A verdict that not all ranks have acknowledged.
  struct Unacked {
    std::vector<bool> seen;
    MonotonicTime at{0};
    bool late = false;              // no longer waited for; but a rank that comes back will need it
    std::vector<std::string> keys;  // of the call
  };

  void DeliverReport(std::uint64_t rank, const std::string& text, MonotonicTime now);
  void DeliverSeen(const std::string& key);
  void SendHeartbeat();
  void Publish(const Verdict& verdict, MonotonicTime now);
  [[nodiscard]] std::optional<MonotonicTime> CallTimesOut() const;
  // The ranks have the verdict before their own deadlines.
  [[nodiscard]] MonotonicTime patience() const { return options_.deadline / 100 * kVerdictPercent; }

  const Id run_;
  const GroupOptions& options_;
  Committer& committer_;
  BoardOutbox& outbox_;
  PieceCollector pieces_;

  std::uint64_t call_ = 0;  // that is being collected, or in work
  bool taken_ = false;      // by the committer
  std::vector<Contribution> reports_;
  RankWatch watch_;
  std::uint64_t heartbeats_ = 0;  // that were sent for the call
  std::map<std::uint64_t, Unacked> unacked_;
};

}  // namespace weightwire
