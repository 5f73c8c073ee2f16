// How far a holder of versions is behind its run: the newer versions that were seen, and since when they are known.
//
// Thread safety: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "log/keys.h"

namespace weightwire {

class VersionLag {
 public:
  // `clock` must outlive the object.
  explicit VersionLag(const Clock& clock) : clock_(clock) {}

  // Records that the run has this version.
  void AddSeen(Version version);
  // Records that this version is held now. If it is older than the one held before, the newer ones count from now.
  void SetHeld(Version version);

  // The newest version that was seen.
  [[nodiscard]] std::optional<Version> newest() const { return newest_; }
  // The number of versions after the one held, up to the newest; 0 if none is held.
  [[nodiscard]] std::uint64_t versions() const;
  // How long the oldest version after the one held has been known; zero if there is none.
  [[nodiscard]] std::chrono::nanoseconds behind() const;

 private:
  const Clock& clock_;
  std::optional<Version> held_;
  std::optional<Version> newest_;
  std::deque<std::pair<Version, MonotonicTime>> newer_;  // than held_, ascending, with when each was first seen
};

}  // namespace weightwire
