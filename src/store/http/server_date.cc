#include "store/http/server_date.h"

#include "store/http/times.h"
#include "store/policy.h"

namespace weightwire {

void ServerDate::Note(const HttpAnswer& answer) {
  const auto date = ParseHttpTime(answer.Header("date"));
  if (!date) return;
  const std::lock_guard lock(mutex_);
  date_ = *date;
  seen_at_ = clock_->Monotonic();
}

std::optional<WallTime> ServerDate::Now() const {
  const std::lock_guard lock(mutex_);
  const std::chrono::nanoseconds passed = clock_->Monotonic() - seen_at_;
  if (!date_ || passed > kMaxServerDateAge) return {};
  return *date_ + std::chrono::duration_cast<std::chrono::milliseconds>(passed);
}

}  // namespace weightwire
