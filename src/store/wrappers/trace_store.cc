#include "store/wrappers/trace_store.h"

#include <fmt/format.h>

#include <utility>

namespace weightwire {

std::string FormatTraceEvent(const TraceEvent& event) {
  const double milliseconds = std::chrono::duration<double, std::milli>(event.duration).count();
  return fmt::format("{} {} {} sent {} received {:.1f} ms {}", event.operation, event.key.empty() ? "-" : event.key,
                     event.sent_bytes, event.received_bytes, milliseconds, event.outcome);
}

TraceStore::TraceStore(std::unique_ptr<Store> inner, const Clock* clock, Sink sink)
    : ForwardingStore(std::move(inner)), clock_(clock), sink_(std::move(sink)) {}

TraceCounts TraceStore::Counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void TraceStore::Tell(const TraceEvent& event, bool failed) {
  const std::lock_guard lock(mutex_);
  ++counts_.requests;
  counts_.failed += failed ? 1 : 0;
  counts_.sent_bytes += event.sent_bytes;
  counts_.received_bytes += event.received_bytes;
  ++counts_.by_operation[std::string(event.operation)];
  if (sink_) sink_(event);
}

Status TraceStore::Around(StoreRequest& request, const Send& send) {
  const MonotonicTime start = clock_->Monotonic();
  Status sent = send();
  TraceEvent event{.operation = NameOf(request.operation),
                   .key = std::string(request.key),
                   .sent_bytes = request.sent_bytes,
                   .duration = clock_->Monotonic() - start,
                   .outcome = "ok"};
  if (sent.ok()) {
    event.received_bytes = request.received_bytes;
    if (request.exists) event.outcome = "exists";
  } else {
    event.outcome = sent.error().message();
  }
  Tell(event, !sent.ok());
  return sent;
}

}  // namespace weightwire
