#include "follow/delta_queue.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/threads.h"
#include "follow/policy.h"

namespace weightwire {

KnownRecord DeltaQueue::Pop() {
  KnownRecord record = std::move(versions_.front().record);
  versions_.pop_front();
  return record;
}

std::size_t DeltaQueue::MaxRequests() const { return threads_ == 1 ? 1 : kSmallPartsPerThread * threads_; }

void DeltaQueue::ReadAhead(Version until, const Avoid& avoid) {
  const Version first = versions_.back().record.record.version + 1;
  if (first > until) return;
  // With the one that is in the queue, as many as parts are fetched at a time.
  std::vector<std::optional<KnownRecord>> records(std::min<std::uint64_t>(until + 1 - first, MaxRequests() - 1));
  if (records.empty()) return;
  ThreadPool requests(records.size());
  requests.ParallelFor(records.size(), [&](std::size_t i, std::size_t) {
    if (auto record = run_.ReadRecord(first + i); record.ok()) records[i] = std::move(record).value();
  });
  for (std::optional<KnownRecord>& record : records) {
    const KnownRecord& before = versions_.back().record;
    if (!record.has_value() || !CheckFollows(before, *record).ok() || !record->record.delta.has_value() ||
        !avoid.Allows(before.record.version, record->record.version)) {
      return;
    }
    Push(*std::move(record));
  }
}

std::vector<DeltaQueue::Request> DeltaQueue::NextRequests(const LeaseKeeper& lease) {
  std::vector<Request> requests;
  std::uint64_t bytes = 0;
  for (Queued& version : versions_) {
    const std::vector<PartRef>& parts = *version.record.record.delta;
    for (std::size_t i = version.parts.size(); i < parts.size(); ++i) {
      bytes += parts[i].size_bytes;
      const bool fits = requests.size() < MaxRequests() && bytes <= kMaxSmallPartBytes && !lease.IsMarked(parts[i].key);
      if (!requests.empty() && !fits) return requests;
      requests.push_back({&version, &parts[i], std::vector<std::uint8_t>()});
    }
  }
  return requests;
}

Result<std::uint64_t> DeltaQueue::FetchParts(const LeaseKeeper& lease) {
  std::vector<Request> requests = NextRequests(lease);
  const std::size_t threads = requests.size() == 1 ? threads_ : 1;
  ThreadPool pool(requests.size());
  pool.ParallelFor(requests.size(),
                   [&](std::size_t i, std::size_t) { requests[i].bytes = run_.ReadPart(*requests[i].part, threads); });
  if (!requests.front().bytes.ok()) return requests.front().bytes.error();
  std::uint64_t bytes = 0;
  for (Request& request : requests) {
    // The error of a later part is reported when that part is the next one, and fails again.
    if (!request.bytes.ok()) break;
    bytes += request.bytes.value().size();
    request.version->parts.push_back(std::move(request.bytes).value());
  }
  return bytes;
}

}  // namespace weightwire
