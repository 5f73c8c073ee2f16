// Watches the ranks that owe a report, of a call or of a piece of an anchor: which of them are silent, and for how
// long.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"

namespace weightwire {

class RankWatch {
 public:
  // `what` is what heartbeats name: a call, or the id of an anchor.
  RankWatch(std::string what, std::uint64_t ranks);

  // Silence counts from now on.
  void Begin(MonotonicTime now);
  [[nodiscard]] bool begun() const { return begun_; }
  // A rank has reported, or sent a heartbeat. The first one begins the watch.
  void Report(std::uint64_t rank, MonotonicTime now);
  void CountHeartbeat(std::uint64_t rank, MonotonicTime now);

  [[nodiscard]] bool HasReported(std::uint64_t rank) const { return reported_[rank]; }
  [[nodiscard]] bool AllReported() const;
  // The key of the rank's next heartbeat.
  [[nodiscard]] std::string HeartbeatKey(std::uint64_t rank) const;

  // Since when the rank that has been silent for the longest has been so.
  [[nodiscard]] std::optional<MonotonicTime> SilentSince() const;
  // Names the ranks that have been silent for longer than `patience`.
  [[nodiscard]] Error SilentError(MonotonicTime patience, MonotonicTime now) const;

 private:
  void Hear(std::uint64_t rank, MonotonicTime now);

  std::string what_;
  bool begun_ = false;
  std::vector<bool> reported_;
  std::vector<std::uint64_t> heartbeats_;
  std::vector<MonotonicTime> heard_;  // when each rank was last heard, or the watch was begun
};

}  // namespace weightwire
