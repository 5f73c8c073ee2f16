// The versions to decode next, in order: their records, and the parts of their deltas as far as they are fetched.
//
// With more than one thread, a large part is fetched in ranges at a time, and small parts and records several at a
// time, because requests for them mostly wait. The threads live only within a call.
//
// Thread safety: one thread at a time. With more than one thread the store must allow calls from several threads.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/result.h"
#include "follow/lease_keeper.h"
#include "log/fetch_plan.h"
#include "log/run.h"

namespace weightwire {

class DeltaQueue {
 public:
  DeltaQueue(Run run, std::size_t threads) : run_(std::move(run)), threads_(threads) {}

  [[nodiscard]] bool empty() const { return versions_.empty(); }
  // The first version: its record and the parts that are fetched. REQUIRES for all of these: !empty().
  [[nodiscard]] const KnownRecord& first() const { return versions_.front().record; }
  [[nodiscard]] const std::vector<std::vector<std::uint8_t>>& parts() const { return versions_.front().parts; }
  [[nodiscard]] bool IsFetched() const { return parts().size() == first().record.delta->size(); }
  // The part to fetch next. REQUIRES: !IsFetched().
  [[nodiscard]] const PartRef& NextPart() const { return (*first().record.delta)[parts().size()]; }

  // REQUIRES: the record has a delta; it follows the last one in the queue.
  void Push(KnownRecord record) { versions_.push_back({std::move(record), {}}); }
  // Removes the first version and returns its record.
  KnownRecord Pop();
  void Clear() { versions_.clear(); }

  // Adds records after the last one in the queue, up to version `until`, several at a time. Stops before the first
  // that cannot be read, does not follow, or has no usable delta; the caller reads that one when its turn comes.
  // REQUIRES: !empty().
  void ReadAhead(Version until, const Avoid& avoid);

  // Fetches NextPart(), and small parts after it that gc has not marked. Returns the number of bytes, or the error of
  // NextPart(); then nothing was added. REQUIRES: !IsFetched().
  Result<std::uint64_t> FetchParts(const LeaseKeeper& lease);

 private:
  struct Queued {
    KnownRecord record;
    std::vector<std::vector<std::uint8_t>> parts;
  };
  // A part to fetch, and the result.
  struct Request {
    Queued* version;
    const PartRef* part;
    Result<std::vector<std::uint8_t>> bytes;
  };

  [[nodiscard]] std::vector<Request> NextRequests(const LeaseKeeper& lease);
  // Small objects that are fetched at a time.
  [[nodiscard]] std::size_t MaxRequests() const;

  const Run run_;
  const std::size_t threads_;
  std::deque<Queued> versions_;
};

}  // namespace weightwire
