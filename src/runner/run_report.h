// What a program can ask about a run: its versions and its followers. The command renders these objects as JSON and
// the binding as dataclasses, with the same fields (VisitFields), so that both surfaces give the same answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "log/record.h"
#include "log/run.h"
#include "tensor/layout.h"

namespace weightwire {

// Bytes and elements (bytes of packed types) of a model.
struct ModelSize {
  std::uint64_t bytes = 0;
  std::uint64_t elements = 0;
};
[[nodiscard]] ModelSize SizeOf(const Layout& layout);

struct VersionInfo {
  Version version = 0;
  std::uint64_t step = 0;
  std::string time;    // by the publisher's clock
  std::string digest;  // of the state
  // nullopt for a version without a delta: the first one, or a rebase.
  std::optional<std::uint64_t> delta_bytes;
  // Of the anchor that the bucket holds of this version now; nullopt if it holds none.
  std::optional<std::uint64_t> anchor_bytes;
  std::optional<std::uint64_t> changed_elements;  // nullopt without a delta
  std::uint64_t elements = 0;                     // of the model
  std::uint64_t model_bytes = 0;
  bool layout_changed = false;  // names, types or shapes differ from the version before
  // False if gc has deleted what leads to the version. Told from a listing (log/available_versions.h).
  bool can_check_out = false;
  std::string writer_id;  // of the publisher
};

template <typename Visit>
void VisitFields(const VersionInfo& info, Visit&& visit) {
  visit("version", info.version);
  visit("step", info.step);
  visit("time", info.time);
  visit("digest", info.digest);
  visit("delta_bytes", info.delta_bytes);
  visit("anchor_bytes", info.anchor_bytes);
  visit("changed_elements", info.changed_elements);
  visit("elements", info.elements);
  visit("model_bytes", info.model_bytes);
  visit("layout_changed", info.layout_changed);
  visit("can_check_out", info.can_check_out);
  visit("writer_id", info.writer_id);
}

// A follower of a run, as its lease describes it. The lag is in versions only: a lag in seconds would compare the
// clocks of two machines.
struct FollowerInfo {
  std::string follower_id;
  std::optional<std::string> name;
  std::optional<Version> version;  // nullopt: it holds none yet
  std::optional<Version> newest_version;
  std::optional<std::uint64_t> lag_versions;  // nullopt if it holds none
  // What gc must keep for it: the deltas after this version, and this version's anchor.
  std::optional<Version> needs_deltas_after;
  std::optional<Version> needs_anchor_version;
  std::string renewed_time;  // of the lease, by the store's clock
  double ttl_seconds = 0;    // how long the lease is active without being renewed
  bool is_active = false;

  std::chrono::seconds renewed_ago{0};  // by the store's clock; for people only
};

template <typename Visit>
void VisitFields(const FollowerInfo& info, Visit&& visit) {
  visit("follower_id", info.follower_id);
  visit("name", info.name);
  visit("version", info.version);
  visit("newest_version", info.newest_version);
  visit("lag_versions", info.lag_versions);
  visit("needs_deltas_after", info.needs_deltas_after);
  visit("needs_anchor_version", info.needs_anchor_version);
  visit("renewed_time", info.renewed_time);
  visit("ttl_seconds", info.ttl_seconds);
  visit("is_active", info.is_active);
}

// Reads versions in order. Reads several records at a time, if `threads` is more than one; then the store must allow
// calls from several threads. The run must outlive it. Thread safety: one thread at a time.
class VersionReader {
 public:
  VersionReader(const Run& run, std::size_t threads) : run_(run), threads_(threads) {}

  // Reads the versions from `first` to `last`, oldest first. Calls `on_record` after each record, from any thread.
  // kCorrupt if a record is missing or does not follow the one before.
  Result<std::vector<VersionInfo>> Read(Version first, Version last, const std::function<void()>& on_record = nullptr);

  // Reads the version after the last one that was read, or version 0. nullopt if it does not exist yet. Reads the
  // record alone, so it shows no anchor that was written after the version was committed.
  Result<std::optional<VersionInfo>> ReadNext();

 private:
  Result<std::vector<KnownRecord>> ReadRecords(Version first, Version last, const std::function<void()>& on_record);
  // What the record and the one before tell. Makes it the one before.
  Result<VersionInfo> InfoOf(const KnownRecord& known);
  Result<ModelSize> ModelOf(const Sha256Digest& layout_hash);

  const Run& run_;
  const std::size_t threads_;
  std::map<Sha256Digest, ModelSize> models_;
  std::optional<KnownRecord> before_;
  bool before_is_available_ = false;
};

// Reads the newest `last` versions, or all, oldest first. None if the run has none.
Result<std::vector<VersionInfo>> ReadVersions(const Run& run, std::optional<std::uint64_t> last, std::size_t threads);
// Reads the newest version. nullopt if the run has none.
Result<std::optional<VersionInfo>> ReadNewest(const Run& run);

// Reads the record of a version, by default of the newest. kNotFound, in a sentence, if there is none.
Result<KnownRecord> FindVersion(const Run& run, std::optional<Version> version);

struct Followers {
  std::vector<FollowerInfo> all;  // by name
  // Leases that cannot be read. gc deletes nothing while one of them may be active.
  std::uint64_t unreadable_leases = 0;
};

Result<Followers> ReadFollowers(const Run& run, std::optional<Version> newest);

}  // namespace weightwire
