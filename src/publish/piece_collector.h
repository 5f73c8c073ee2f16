// Collects the pieces of an anchor by policy from all ranks, and completes the anchor. It belongs to rank 0's process,
// and hears of the ranks by the board alone.
//
// Pure state but for Execute: calls exclude each other, except that Execute may run beside any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/failure_policy.h"
#include "publish/anchor_assembly.h"
#include "publish/board_messages.h"
#include "publish/committer.h"
#include "publish/rank_watch.h"

namespace weightwire {

// Checks that the pieces are the version, and puts what makes them an anchor.
struct AssembleJob {
  AnchorSubject subject;
  std::shared_ptr<const Layout> layout;
  std::vector<PieceReport> pieces;
  // Outcome:
  std::optional<KnownAnchor> anchor;
  std::optional<Error> error;
};

class PieceCollector {
 public:
  // `options` have a group. All that is given by reference must outlive it.
  PieceCollector(Run run, const PublisherOptions& options, AnchorOptions anchors, Committer& committer,
                 BoardOutbox& outbox)
      : run_(std::move(run)), options_(options), anchors_(std::move(anchors)), committer_(committer), outbox_(outbox) {}

  // Collects the anchor that the committer has in work, and no other one any more.
  void Follow(MonotonicTime now);

  [[nodiscard]] std::vector<std::string> Wanted() const;
  void Deliver(const std::string& key, const std::string& text, MonotonicTime now);

  std::optional<AssembleJob> Next(MonotonicTime now);
  void Execute(AssembleJob& job) const;
  void Finish(AssembleJob job, MonotonicTime now);
  bool Tick(MonotonicTime now);
  [[nodiscard]] std::optional<MonotonicTime> TickDue() const;
  [[nodiscard]] std::optional<MonotonicTime> Due() const;
  [[nodiscard]] bool idle() const { return !anchor_.has_value(); }

 private:
  struct Anchor {
    AnchorSubject subject;
    std::shared_ptr<const Layout> layout;
    RankWatch watch;
    std::vector<PieceReport> pieces;
    MonotonicTime begun{0};
    Backoff backoff;
    std::optional<MonotonicTime> due;
    bool busy = false;
  };

  void Abandon(const Error& why);
  void End();

  const Run run_;
  const PublisherOptions& options_;
  const AnchorOptions anchors_;
  Committer& committer_;
  BoardOutbox& outbox_;
  std::optional<Anchor> anchor_;
  std::vector<Id> ended_;  // anchors whose end is on the board
};

}  // namespace weightwire
