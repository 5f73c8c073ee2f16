// A store whose requests are counted by what they are for, to be held against what the protocol promises.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/random.h"
#include "base/result.h"
#include "cli/interrupt.h"
#include "store/store.h"
#include "store/wrappers/trace_store.h"

namespace weightwire {

struct RequestCounts {
  std::uint64_t requests = 0;  // all but the two kinds below
  std::uint64_t not_yet = 0;   // for a record that does not exist
  std::uint64_t leases = 0;    // lease renewals, and the marks that are read with them
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t object_bytes = 0;  // received, of parts and of anchors' files: without records, layouts, manifests

  RequestCounts operator-(const RequestCounts& before) const;
};

// With the wrappers that commands use. Thread safety: that of the store; Counts may be called at any time.
class CountedStore {
 public:
  static Result<std::unique_ptr<CountedStore>> Open(const std::string& location);

  [[nodiscard]] Store& store() { return *store_; }
  [[nodiscard]] RequestCounts Counts() const;

 private:
  CountedStore() = default;
  void Count(const TraceEvent& event);

  SystemClock clock_;
  InterruptSleeper sleeper_;
  SystemRandom random_;
  mutable std::mutex mutex_;
  RequestCounts counts_;  // guarded by mutex_
  std::unique_ptr<Store> store_;
};

}  // namespace weightwire
