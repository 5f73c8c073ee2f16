// A server's clock, from the Date headers of its answers.
#pragma once

#include <mutex>
#include <optional>

#include "base/clock.h"
#include "store/http/http.h"

namespace weightwire {

// Thread safety: all calls may be made by several threads.
class ServerDate {
 public:
  // `clock` must outlive it; only its pace counts, not what time it is there.
  explicit ServerDate(const Clock* clock) : clock_(clock) {}

  void Note(const HttpAnswer& answer);

  // The server's time now, if an answer came within the last minute.
  [[nodiscard]] std::optional<WallTime> Now() const;

 private:
  const Clock* const clock_;
  mutable std::mutex mutex_;
  std::optional<WallTime> date_;         // guarded by mutex_
  std::chrono::nanoseconds seen_at_{0};  // by our clock; guarded by mutex_
};

}  // namespace weightwire
