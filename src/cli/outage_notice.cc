#include "cli/outage_notice.h"

#include <fmt/format.h>

#include <utility>

#include "base/failure_policy.h"
#include "base/quantities.h"
#include "cli/messages.h"
#include "cli/policy.h"

namespace weightwire {

Status OutageNoticeStore::Around(StoreRequest& /*request*/, const Send& send) {
  const MonotonicTime start = clock_->Monotonic();
  Status sent = send();
  const std::lock_guard lock(mutex_);
  if (sent.ok() || !IsTransient(sent.error())) {
    began_.reset();
    if (std::exchange(told_, false)) messages::Info(fmt::format("{} answers again", Name()));
    return sent;
  }
  if (!began_.has_value()) began_ = start;
  const bool may_wait = retry_for_ > std::chrono::seconds(0);
  if (may_wait && clock_->Monotonic() - *began_ >= kOutageNotice && !std::exchange(told_, true)) {
    messages::Warning(
        fmt::format("{}; retrying for {} (--retry-for)", sent.error().message(), HumanDuration(retry_for_)));
  }
  return sent;
}

}  // namespace weightwire
