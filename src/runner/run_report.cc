#include "runner/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/threads.h"
#include "log/available_versions.h"
#include "log/fields.h"

namespace weightwire {
namespace {

Error RecordMissing(const Run& run, Version version) {
  return {ErrorCode::kCorrupt, fmt::format("the record of version {} is missing from {}, though a later one is there",
                                           version, run.store().Name())};
}

FollowerInfo InfoOf(const KnownLease& known, std::optional<Version> newest, WallTime now) {
  const Lease& lease = known.lease;
  FollowerInfo info;
  info.follower_id = ToHex(lease.follower);
  if (!lease.name.empty()) info.name = lease.name;
  info.version = lease.holds;
  info.newest_version = newest;
  if (newest.has_value() && lease.holds.has_value()) info.lag_versions = *newest - std::min(*newest, *lease.holds);
  info.needs_deltas_after = lease.needs_from;
  if (lease.needs_anchor.has_value()) info.needs_anchor_version = lease.needs_anchor->version;
  info.renewed_time = TimeText(known.last_modified);
  info.ttl_seconds = static_cast<double>(lease.seconds);
  info.is_active = IsActive(lease, known.last_modified, now);
  info.renewed_ago = std::chrono::floor<std::chrono::seconds>(now - known.last_modified);
  return info;
}

}  // namespace

ModelSize SizeOf(const Layout& layout) {
  ModelSize size;
  size.bytes = layout.total_bytes();
  for (std::size_t i = 0; i < layout.size(); ++i) size.elements += layout.unit_count(i);
  return size;
}

Result<ModelSize> VersionReader::ModelOf(const Sha256Digest& layout_hash) {
  const auto known = models_.find(layout_hash);
  if (known != models_.end()) return known->second;
  WW_TRY(const Layout layout, run_.ReadLayout(layout_hash));
  return models_.emplace(layout_hash, SizeOf(layout)).first->second;
}

Result<VersionInfo> VersionReader::InfoOf(const KnownRecord& known) {
  const Record& record = known.record;
  if (before_.has_value() && before_->record.version + 1 == record.version) {
    WW_RETURN_IF_ERROR(CheckFollows(*before_, known));
  }
  VersionInfo info;
  info.version = record.version;
  info.step = record.step;
  info.time = record.time;
  info.digest = ToHex(record.state);
  if (record.delta.has_value()) {
    info.delta_bytes = record.OwnDeltaBytes();
    info.changed_elements = record.changed;
  }
  WW_TRY(const ModelSize model, ModelOf(record.layout));
  info.elements = model.elements;
  info.model_bytes = model.bytes;
  info.layout_changed = before_.has_value() && before_->record.layout != record.layout;
  info.writer_id = ToHex(record.writer);
  before_ = known;
  return info;
}

Result<std::vector<KnownRecord>> VersionReader::ReadRecords(Version first, Version last,
                                                            const std::function<void()>& on_record) {
  std::vector<std::optional<KnownRecord>> found(last - first + 1);
  ThreadPool pool(std::clamp<std::size_t>(found.size(), 1, threads_));
  WW_RETURN_IF_ERROR(pool.TryParallelFor(found.size(), [&](std::size_t i, std::size_t) -> Status {
    WW_TRY(found[i], run_.ReadRecord(first + i));
    if (on_record) on_record();
    return found[i].has_value() ? Ok() : Status(RecordMissing(run_, first + i));
  }));
  std::vector<KnownRecord> records;
  records.reserve(found.size());
  for (auto& record : found) records.push_back(*std::move(record));
  return records;
}

Result<std::vector<VersionInfo>> VersionReader::Read(Version first, Version last,
                                                     const std::function<void()>& on_record) {
  before_.reset();
  if (first > 0) {
    WW_TRY(before_, run_.ReadRecord(first - 1));
    if (!before_.has_value()) return RecordMissing(run_, first - 1);
  }
  WW_TRY(const std::vector<KnownRecord> records, ReadRecords(first, last, on_record));
  WW_TRY(AvailableVersions available, AvailableVersions::List(run_, records.front().record, last));
  std::vector<VersionInfo> infos;
  infos.reserve(records.size());
  for (const KnownRecord& known : records) {
    WW_TRY(VersionInfo info, InfoOf(known));
    info.anchor_bytes = available.AnchorBytes(info.version);
    info.can_check_out = available.Next(known.record);
    before_is_available_ = info.can_check_out;
    infos.push_back(std::move(info));
  }
  return infos;
}

Result<std::optional<VersionInfo>> VersionReader::ReadNext() {
  WW_TRY(const auto known, run_.ReadRecord(before_.has_value() ? before_->record.version + 1 : 0));
  if (!known.has_value()) return std::optional<VersionInfo>();
  WW_TRY(VersionInfo info, InfoOf(*known));
  const Record& record = known->record;
  // A version without a delta is committed after its anchor.
  if (!record.delta.has_value()) info.anchor_bytes = record.anchor->bytes;
  info.can_check_out = !record.delta.has_value() || before_is_available_;
  before_is_available_ = info.can_check_out;
  return std::optional(std::move(info));
}

Result<std::vector<VersionInfo>> ReadVersions(const Run& run, std::optional<std::uint64_t> last, std::size_t threads) {
  WW_TRY(const auto newest, run.FindNewest(std::nullopt));
  if (!newest.has_value() || last == 0U) return std::vector<VersionInfo>();
  const Version newest_version = newest->record.version;
  const std::uint64_t count = std::min(last.value_or(newest_version + 1), newest_version + 1);
  return VersionReader(run, threads).Read(newest_version + 1 - count, newest_version);
}

Result<std::optional<VersionInfo>> ReadNewest(const Run& run) {
  WW_TRY(auto versions, ReadVersions(run, 1, 1));
  return versions.empty() ? std::nullopt : std::optional(std::move(versions.front()));
}

Result<KnownRecord> FindVersion(const Run& run, std::optional<Version> version) {
  std::optional<KnownRecord> record;
  if (version.has_value()) {
    WW_TRY(record, run.ReadRecord(*version));
  } else {
    WW_TRY(record, run.FindNewest(std::nullopt));
  }
  if (record.has_value()) return *std::move(record);
  if (!version.has_value()) {
    return Error(ErrorCode::kNotFound, fmt::format("the run at {} has no version yet", run.store().Name()));
  }
  return Error(ErrorCode::kNotFound, fmt::format("the run at {} has no version {}", run.store().Name(), *version));
}

Result<Followers> ReadFollowers(const Run& run, std::optional<Version> newest) {
  Followers followers;
  WW_TRY(const std::vector<KnownLease> leases, run.ReadLeases(&followers.unreadable_leases));
  if (leases.empty()) return followers;
  WW_TRY(const WallTime now, run.store().Now());
  for (const KnownLease& known : leases) followers.all.push_back(InfoOf(known, newest, now));
  std::sort(followers.all.begin(), followers.all.end(), [](const FollowerInfo& a, const FollowerInfo& b) {
    return std::tie(a.name, a.follower_id) < std::tie(b.name, b.follower_id);
  });
  return followers;
}

}  // namespace weightwire
