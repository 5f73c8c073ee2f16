// The metrics of `weightwire follow --metrics`: the values of runner/metrics.h, from a follower's status and events.
//
// Thread safety: one thread calls Update, Failed and Applied; any thread may call Text.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "follow/follower.h"
#include "log/id.h"
#include "runner/metric_values.h"

namespace weightwire {

class FollowMetrics {
 public:
  // `clock` must outlive the object.
  explicit FollowMetrics(const Clock& clock) : clock_(clock) {}

  // Names the run, once it is known.
  void SetRun(const Id& run);
  // After each step of the follower, and after each failed one.
  void Update(const FollowerStatus& status);
  // An attempt failed and will be repeated.
  void Failed(const Error& error);
  // The target holds another version, and its readers had to wait for `locked`; nullopt if they never wait.
  void Applied(std::optional<std::chrono::nanoseconds> locked);

  // For Prometheus. The lag goes on growing between two updates.
  [[nodiscard]] std::string Text();

 private:
  const Clock& clock_;
  MetricValues values_;
  std::uint64_t bytes_before_ = 0;
  std::mutex mutex_;
  std::optional<MonotonicTime> behind_since_;  // guarded by mutex_
};

}  // namespace weightwire
