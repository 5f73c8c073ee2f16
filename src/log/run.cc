#include "log/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/bytes.h"
#include "base/failure_policy.h"
#include "base/limits.h"
#include "log/limits.h"
#include "store/read_back.h"
#include "store/transfer.h"

namespace weightwire {
namespace {

std::string In(const std::string& key, const Store& store) { return fmt::format("{} of {}", key, store.Name()); }

Status CheckRun(const Id& run, const RunManifest& manifest) {
  if (run == manifest.run) return Ok();
  return Corrupt("it belongs to another run; was the bucket's content copied or mixed?");
}

// All objects below a prefix; kLimit above `limit`.
Result<std::vector<ObjectInfo>> ListAll(Store& store, std::string_view prefix, std::string_view start_after,
                                        std::uint64_t limit) {
  std::vector<ObjectInfo> all;
  std::string after(start_after);
  for (;;) {
    WW_TRY(std::vector<ObjectInfo> page, store.List(prefix, after, kMaxListEntries));
    if (all.size() + page.size() > limit) {
      return Error(ErrorCode::kLimit,
                   fmt::format("there are more than {} objects below {} in {}", limit, prefix, store.Name()));
    }
    const bool last = page.size() < kMaxListEntries;
    std::move(page.begin(), page.end(), std::back_inserter(all));
    if (last) return all;
    after = all.back().key;
  }
}

// Files of all anchors of a run: far above what a gc leaves behind.
constexpr std::uint64_t kMaxAnchorObjects = std::uint64_t{1} << 22;
constexpr std::uint64_t kMaxMarks = 1024;
// A part that a record says is larger is asked for its size first.
constexpr std::uint64_t kMaxTrustedPartBytes = std::uint64_t{64} << 20;

}  // namespace

Result<Run> Run::Open(Store& store) {
  const auto bytes = store.Get(kRunManifestKey, kMaxRunManifestBytes);
  if (!bytes.ok()) {
    if (bytes.error().code() != ErrorCode::kNotFound) return bytes.error();
    return Error(ErrorCode::kNotFound,
                 fmt::format("there is no run at {}: make one with `weightwire init`", store.Name()));
  }
  auto manifest = ParseRunManifest(TextOf(bytes.value()));
  if (!manifest.ok()) return manifest.error().In(In(std::string(kRunManifestKey), store));
  return Run(store, std::move(manifest).value());
}

Result<Run> Run::Create(Store& store, bool single_writer, Random& random) {
  // Looked for first: where put-if-absent is not honoured, putting would replace the run that is there.
  auto there = Open(store);
  if (there.ok() || there.error().code() != ErrorCode::kNotFound) return there;
  RunManifest manifest;
  manifest.run = NewId(random);
  manifest.single_writer = single_writer;
  // Whoever loses a race opens the winner's run.
  WW_TRY(const ReadBackOutcome outcome, PutAndReadBack(store, kRunManifestKey, BytesOf(ToJson(manifest))));
  if (outcome == ReadBackOutcome::kConflict) return Open(store);
  return Run(store, std::move(manifest));
}

Status Run::CheckMayWrite() const {
  return CheckFeatures(manifest_.write, fmt::format("write to the run at {}", store_->Name()));
}

Result<std::optional<KnownRecord>> Run::ReadRecord(Version version) const {
  const std::string key = RecordKey(version);
  const auto bytes = store_->Get(key, kMaxRecordBytes);
  if (!bytes.ok()) {
    if (bytes.error().code() == ErrorCode::kNotFound) return std::optional<KnownRecord>();
    return bytes.error();
  }
  const auto check = [&]() -> Result<KnownRecord> {
    WW_TRY(Record record, ParseRecord(TextOf(bytes.value())));
    WW_RETURN_IF_ERROR(CheckRun(record.run, manifest_));
    if (record.version != version) return Corrupt(fmt::format("it says it is version {}", record.version));
    return KnownRecord{std::move(record), Sha256Of(bytes.value())};
  };
  auto record = check();
  if (!record.ok()) return record.error().In(In(key, *store_));
  return std::optional(std::move(record).value());
}

Result<std::optional<KnownRecord>> Run::FindNewest(std::optional<Version> known) const {
  const Version first = known.value_or(0);
  WW_TRY(std::optional<KnownRecord> newest, ReadRecord(first));
  if (!newest.has_value()) {
    if (!known.has_value()) return std::optional<KnownRecord>();
    return Corrupt(fmt::format("the record of version {} has been there and is gone from {}", first, store_->Name()));
  }
  const auto last = FindLast(first, [&](Version version) -> Result<bool> {
    WW_TRY(auto record, ReadRecord(version));
    if (record.has_value()) newest = std::move(record);
    return newest->record.version == version;
  });
  if (!last.ok()) return last.error();
  return newest;
}

Result<std::optional<Version>> Run::FindNewestNumber() const {
  const auto exists = [&](Version version) -> Result<bool> {
    const auto stat = store_->Stat(RecordKey(version));
    if (!stat.ok() && stat.error().code() != ErrorCode::kNotFound) return stat.error();
    return stat.ok();
  };
  WW_TRY(const bool any, exists(0));
  if (!any) return std::optional<Version>();
  WW_TRY(const Version last, FindLast(0, exists));
  return std::optional(last);
}

Result<Version> Run::FindLast(Version first, const std::function<Result<bool>(Version)>& exists) const {
  // `last` exists; everything from `missing` on does not.
  Version last = first;
  Version missing = 0;
  for (Version step = 1; missing == 0; step *= 2) {
    if (step > kMaxVersion - last) return Corrupt(fmt::format("the versions of {} do not end", store_->Name()));
    WW_TRY(const bool is_there, exists(last + step));
    (is_there ? last : missing) = last + step;
  }
  while (missing - last > 1) {
    const Version middle = last + (missing - last) / 2;
    WW_TRY(const bool is_there, exists(middle));
    (is_there ? last : missing) = middle;
  }
  return last;
}

Result<std::vector<std::uint8_t>> Run::ReadPart(const PartRef& part, std::size_t threads) const {
  if (part.size_bytes > kMaxTrustedPartBytes) {
    WW_TRY(const ObjectInfo there, store_->Stat(part.key));
    if (there.size_bytes != part.size_bytes) {
      return Corrupt(fmt::format("it has {} bytes, and its record says {}", there.size_bytes, part.size_bytes))
          .In(In(part.key, *store_));
    }
  }
  std::vector<std::uint8_t> bytes(part.size_bytes);
  WW_RETURN_IF_ERROR(DownloadObject(*store_, part.key, part.hash, bytes, {.threads = threads}));
  return bytes;
}

Result<Layout> Run::ReadLayout(const Sha256Digest& hash) const {
  const std::string key = LayoutKey(hash);
  WW_TRY(const auto bytes, store_->Get(key, kMaxLayoutBytes));
  auto layout = Layout::Parse(TextOf(bytes));
  if (!layout.ok()) return layout.error().In(In(key, *store_));
  if (layout.value().hash() != hash) return Corrupt("its bytes are not what its name says").In(In(key, *store_));
  return std::move(layout).value();
}

Status Run::PutLayout(const Layout& layout) const {
  const std::string text = layout.CanonicalJson();
  const std::string key = LayoutKey(layout.hash());
  WW_TRY(const ReadBackOutcome outcome, PutAndReadBack(*store_, key, BytesOf(text)));
  if (outcome == ReadBackOutcome::kOurs) return Ok();
  return Corrupt("other bytes lie where this layout belongs").In(In(key, *store_));
}

Result<KnownAnchor> Run::ReadAnchor(const AnchorName& name) const {
  const std::string key = AnchorManifestKey(name);
  WW_TRY(const auto bytes, store_->Get(key, kMaxAnchorManifestBytes));
  const auto check = [&]() -> Result<KnownAnchor> {
    WW_TRY(AnchorManifest manifest, ParseAnchorManifest(TextOf(bytes)));
    WW_RETURN_IF_ERROR(CheckRun(manifest.run, manifest_));
    if (manifest.name != name) return Corrupt("it is the list of another anchor");
    return KnownAnchor{std::move(manifest), Sha256Of(bytes)};
  };
  auto anchor = check();
  if (!anchor.ok()) return anchor.error().In(In(key, *store_));
  return anchor;
}

Result<std::vector<AnchorName>> Run::ListAnchors(Version from) const {
  // Everything of version `from` comes after the name of its folder without the slash.
  std::string before = AnchorFolder({from, Id{}});
  before.resize(before.find('/', kAnchorsPrefix.size()));
  WW_TRY(const auto objects, ListAll(*store_, kAnchorsPrefix, before, kMaxAnchorObjects));
  std::vector<AnchorName> anchors;
  for (const ObjectInfo& object : objects) {
    if (IsAnchorManifestKey(object.key)) anchors.push_back(*AnchorOfKey(object.key));
  }
  return anchors;
}

Result<Lease> Run::ReadLease(const std::string& key) const {
  WW_TRY(const auto bytes, store_->Get(key, kMaxLeaseBytes));
  WW_TRY(Lease lease, ParseLease(TextOf(bytes)));
  WW_RETURN_IF_ERROR(CheckRun(lease.run, manifest_));
  if (key != LeaseKey(lease.follower)) return Corrupt("it is the lease of another follower");
  return lease;
}

Result<ActiveLeases> Run::ReadActiveLeases() const {
  ActiveLeases active;
  // The clock first: a lease that expires during the list counts as active.
  WW_TRY(active.store_now, store_->Now());
  WW_TRY(const auto objects, ListAll(*store_, kLeasesPrefix, "", kMaxLeaseObjects));
  for (const ObjectInfo& object : objects) {
    if (active.store_now - object.last_modified > std::chrono::seconds(kMaxLeaseSeconds) + kStoreClockSlack) continue;
    if (active.leases.size() + active.damaged.size() == kMaxLeases) {
      return Error(ErrorCode::kLimit,
                   fmt::format("more than {} leases may be active in {}", kMaxLeases, store_->Name()));
    }
    const auto lease = ReadLease(object.key);
    if (lease.ok()) {
      if (IsActive(lease.value(), object.last_modified, active.store_now)) {
        active.leases.push_back({lease.value(), object.last_modified});
      }
    } else if (IsUnreadable(lease.error())) {
      active.damaged.push_back(object);
    } else if (lease.error().code() != ErrorCode::kNotFound) {  // that one was given up meanwhile
      return lease.error();
    }
  }
  return active;
}

Result<std::vector<KnownLease>> Run::ReadLeases(std::uint64_t* damaged) const {
  WW_TRY(const auto objects, ListAll(*store_, kLeasesPrefix, "", kMaxLeaseObjects));
  std::vector<KnownLease> leases;
  for (const ObjectInfo& object : objects) {
    const auto lease = ReadLease(object.key);
    if (lease.ok()) {
      leases.push_back({lease.value(), object.last_modified});
    } else if (IsUnreadable(lease.error())) {
      if (damaged != nullptr) ++*damaged;
    } else if (lease.error().code() != ErrorCode::kNotFound) {
      return lease.error();
    }
  }
  return leases;
}

Status Run::PutLease(const Lease& lease) const { return store_->Put(LeaseKey(lease.follower), BytesOf(ToJson(lease))); }

Status Run::RemoveLease(const Id& follower) const { return store_->Remove(LeaseKey(follower)); }

Result<std::vector<Mark>> Run::ReadMarks(std::span<const Mark> known) const {
  WW_TRY(auto found, ReadMarksWithTimes(known));
  std::vector<Mark> marks;
  marks.reserve(found.size());
  for (KnownMark& mark : found) marks.push_back(std::move(mark.mark));
  return marks;
}

Result<std::vector<KnownMark>> Run::ReadMarksWithTimes(std::span<const Mark> known) const {
  WW_TRY(const auto objects, ListAll(*store_, kMarksPrefix, "", kMaxMarks));
  std::vector<KnownMark> marks;
  for (const ObjectInfo& object : objects) {
    if (!IsMarkKey(object.key)) continue;
    const auto at = std::ranges::find(known, object.key, [](const Mark& mark) { return MarkKey(mark.id); });
    if (at != known.end()) {
      marks.push_back({*at, object.last_modified});
      continue;
    }
    WW_TRY(auto mark, ReadMark(object.key));
    if (mark.has_value()) marks.push_back({*std::move(mark), object.last_modified});
  }
  return marks;
}

Result<std::optional<Mark>> Run::ReadMark(const std::string& key) const {
  const auto bytes = store_->Get(key, kMaxMarkBytes);
  if (!bytes.ok() && bytes.error().code() == ErrorCode::kNotFound) return std::optional<Mark>();  // done meanwhile
  if (!bytes.ok()) return bytes.error();
  // What it names may go at any time, and nobody knows what that is: so nothing can be relied on.
  const auto damaged = [&](const Error& why) {
    return Corrupt(fmt::format("{}; remove it if no gc is at work", why.In(In(key, *store_)).message()));
  };
  auto mark = ParseMark(TextOf(bytes.value()));
  if (!mark.ok()) return damaged(mark.error());
  if (const Status ours = CheckRun(mark.value().run, manifest_); !ours.ok()) return damaged(ours.error());
  if (key != MarkKey(mark.value().id)) return damaged(Corrupt("it is another mark"));
  return std::optional(std::move(mark).value());
}

bool HasStateOf(const Record& record, const KnownAnchor& anchor) {
  return record.state == anchor.manifest.state && record.layout == anchor.manifest.layout;
}

bool Contradicts(const Record& record, const KnownAnchor& anchor) {
  return record.anchor.has_value() && record.anchor->name == anchor.manifest.name &&
         record.anchor->manifest_hash != anchor.hash;
}

Status CheckFollows(const KnownRecord& before, const KnownRecord& next) {
  const Record& record = next.record;
  const auto refuse = [&](std::string_view why) {
    return Corrupt(fmt::format("the record of version {} does not follow that of version {}: {}", record.version,
                               before.record.version, why));
  };
  if (record.version != before.record.version + 1) return refuse("it is not the next version");
  if (record.parent != before.hash) return refuse("it was made for another parent");
  if (record.delta_bytes != before.record.delta_bytes + record.OwnDeltaBytes())
    return refuse("its sum of bytes is wrong");
  if (record.delta.has_value() && record.chain != before.record.chain) return refuse("its chain begins elsewhere");
  const bool same = record.delta.has_value() && record.delta->empty();
  if (same && (record.state != before.record.state || record.layout != before.record.layout)) {
    return refuse("it has another state, but nothing that leads there");
  }
  return Ok();
}

}  // namespace weightwire
