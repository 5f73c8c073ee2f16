#include "cli/follow_metrics.h"

#include <utility>

#include "cli/command.h"
#include "runner/error_kinds.h"
#include "runner/metrics.h"

namespace weightwire {

void FollowMetrics::SetRun(const Id& run) { values_.Set(metrics::kInfo, 1, {ToHex(run), std::string(kVersion)}); }

void FollowMetrics::Update(const FollowerStatus& status) {
  if (status.held.has_value()) {
    values_.Set(metrics::kVersion, static_cast<double>(*status.held));
  } else {
    values_.Remove(metrics::kVersion);
  }
  values_.Set(metrics::kLagVersions, static_cast<double>(status.lag));
  values_.Add(metrics::kReceivedBytes,
              static_cast<double>(status.bytes_fetched - std::exchange(bytes_before_, status.bytes_fetched)));
  const std::lock_guard lock(mutex_);
  behind_since_.reset();
  if (status.behind > std::chrono::nanoseconds(0)) behind_since_ = clock_.Monotonic() - status.behind;
}

void FollowMetrics::Failed(const Error& error) {
  values_.Add(metrics::kUpdateFailures, 1, {std::string(KindOf(error.code()).name)});
}

void FollowMetrics::Applied(std::optional<std::chrono::nanoseconds> locked) {
  values_.Add(metrics::kUpdates, 1);
  if (locked.has_value()) {
    values_.Observe(metrics::kCommitDuration, std::chrono::duration<double>(*locked).count());
  }
}

std::string FollowMetrics::Text() {
  std::chrono::duration<double> behind(0);
  {
    const std::lock_guard lock(mutex_);
    if (behind_since_.has_value()) behind = clock_.Monotonic() - *behind_since_;
  }
  values_.Set(metrics::kLagSeconds, behind.count());
  return values_.Text();
}

}  // namespace weightwire
