// A link carries a rank's contributions to the committer, and the committer's verdicts back.
//
// direct_link.h calls a committer of the same process. board_link.h uses a board that all ranks can read, and adds what
// only several processes need: deadlines and heartbeats.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "publish/contribution.h"

namespace weightwire {

class CommitterLink {
 public:
  CommitterLink() = default;
  CommitterLink(const CommitterLink&) = delete;
  CommitterLink& operator=(const CommitterLink&) = delete;
  virtual ~CommitterLink() = default;

  // Sends what this rank contributes to a call. Calls are sent in order, each once.
  virtual void Send(std::uint64_t call, const Contribution& contribution, MonotonicTime now) = 0;
  // The next verdict that has arrived, if any.
  virtual std::optional<Verdict> TakeVerdict(MonotonicTime now) = 0;
};

}  // namespace weightwire
