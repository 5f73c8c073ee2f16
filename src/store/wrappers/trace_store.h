// A store that tells of every request, and counts them and their bytes.
//
// A request is one call: of a store, or of an upload. A list that takes several pages, and a read that is redirected,
// count once. Put it inside a RetryStore to see every attempt.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "store/wrappers/forwarding_store.h"

namespace weightwire {

struct TraceEvent {
  std::string_view operation;  // NameOf a StoreOperation
  std::string key;             // or prefix; may be empty
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::chrono::nanoseconds duration{0};
  std::string outcome;  // "ok", "exists", or the error's sentence
};

// "put-if-absent versions/00000000000000000001.json 812 sent 0 received 12.3 ms exists"
std::string FormatTraceEvent(const TraceEvent& event);

struct TraceCounts {
  std::uint64_t requests = 0;
  std::uint64_t failed = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::map<std::string, std::uint64_t, std::less<>> by_operation;
};

class TraceStore final : public ForwardingStore {
 public:
  using Sink = std::function<void(const TraceEvent&)>;

  // `clock` must outlive the store. The sink, which may be empty, is called by one thread at a time, within the
  // request.
  TraceStore(std::unique_ptr<Store> inner, const Clock* clock, Sink sink);

  [[nodiscard]] TraceCounts Counts() const;

 private:
  Status Around(StoreRequest& request, const Send& send) override;
  void Tell(const TraceEvent& event, bool failed);

  const Clock* const clock_;
  const Sink sink_;
  mutable std::mutex mutex_;
  TraceCounts counts_;  // guarded by mutex_
};

}  // namespace weightwire
