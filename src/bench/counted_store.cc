#include "bench/counted_store.h"

#include "log/keys.h"
#include "store/open.h"

namespace weightwire {
namespace {

bool IsRecordKey(const std::string& key) {
  static const std::string kFolder = RecordKey(0).substr(0, RecordKey(0).find('/') + 1);
  return key.starts_with(kFolder);
}

}  // namespace

RequestCounts RequestCounts::operator-(const RequestCounts& before) const {
  RequestCounts counts = *this;
  counts.requests -= before.requests;
  counts.not_yet -= before.not_yet;
  counts.leases -= before.leases;
  counts.sent_bytes -= before.sent_bytes;
  counts.received_bytes -= before.received_bytes;
  counts.object_bytes -= before.object_bytes;
  return counts;
}

Result<std::unique_ptr<CountedStore>> CountedStore::Open(const std::string& location) {
  std::unique_ptr<CountedStore> counted(new CountedStore());
  OpenOptions open;
  open.clock = &counted->clock_;
  open.sleeper = &counted->sleeper_;
  open.random = &counted->random_;
  open.trace = [self = counted.get()](const TraceEvent& event) { self->Count(event); };
  WW_TRY(counted->store_, OpenStore(location, open));
  return counted;
}

RequestCounts CountedStore::Counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void CountedStore::Count(const TraceEvent& event) {
  const std::lock_guard lock(mutex_);
  counts_.sent_bytes += event.sent_bytes;
  counts_.received_bytes += event.received_bytes;
  if (event.key.starts_with(kLeasesPrefix) || event.key.starts_with(kMarksPrefix)) {
    ++counts_.leases;
  } else if (IsRecordKey(event.key) && event.operation == "get" && event.outcome != "ok") {
    ++counts_.not_yet;
  } else {
    ++counts_.requests;
  }
  const bool is_anchor_file = event.key.starts_with(kAnchorsPrefix) && !IsAnchorManifestKey(event.key);
  if (event.key.starts_with(kDeltasPrefix) || is_anchor_file) counts_.object_bytes += event.received_bytes;
}

}  // namespace weightwire
