#include "log/available_versions.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "log/limits.h"

namespace weightwire {
namespace {

// Calls visit(object) for all objects below `prefix` after `after`, until it returns false.
template <typename Visit>
Status ListBelow(Store& store, std::string_view prefix, std::string after, const Visit& visit) {
  for (;;) {
    WW_TRY(const auto page, store.List(prefix, after, kPageEntries));
    for (const ObjectInfo& object : page) {
      if (!visit(object)) return Ok();
    }
    if (page.size() < kPageEntries) return Ok();
    after = page.back().key;
  }
}

// A key that comes just before all keys below the folder.
std::string Before(std::string folder) {
  folder.pop_back();  // its "/"
  return folder;
}

}  // namespace

Result<AvailableVersions> AvailableVersions::List(const Run& run, const Record& first, Version last) {
  AvailableVersions available;
  WW_RETURN_IF_ERROR(available.ListAnchors(run, first.chain));
  // The newest anchor before `first` decides: an older one needs the same deltas, and more.
  const auto after = available.anchors_.lower_bound(first.version);
  if (after == available.anchors_.begin()) {
    WW_RETURN_IF_ERROR(available.ListDeltas(run, first.version - std::min<Version>(first.version, 1), last));
    return available;
  }
  const Version anchor = std::prev(after)->first;
  WW_RETURN_IF_ERROR(available.ListDeltas(run, anchor, last));
  available.before_ = true;
  for (Version version = anchor + 1; version < first.version && available.before_; ++version) {
    if (available.with_parts_.contains(version)) continue;
    // Either its delta has no parts, or they are gone.
    WW_TRY(const auto record, run.ReadRecord(version));
    available.before_ = record.has_value() && available.HasParts(record->record);
  }
  return available;
}

Status AvailableVersions::ListAnchors(const Run& run, Version from) {
  std::map<AnchorName, std::uint64_t> bytes;
  std::set<AnchorName> complete;
  // Everything of version `from` comes after the name of its folder without the slash.
  std::string before = AnchorFolder({from, Id{}});
  before.resize(before.find('/', kAnchorsPrefix.size()));
  WW_RETURN_IF_ERROR(ListBelow(run.store(), kAnchorsPrefix, std::move(before), [&](const ObjectInfo& object) {
    const auto name = AnchorOfKey(object.key);
    if (!name.has_value()) return true;  // none of ours
    if (IsAnchorManifestKey(object.key)) {
      complete.insert(*name);
    } else {
      bytes[*name] += object.size_bytes;
    }
    return true;
  }));
  for (const AnchorName& name : complete) {
    const auto [at, is_new] = anchors_.try_emplace(name.version, bytes[name]);
    if (!is_new) at->second = std::min(at->second, bytes[name]);
  }
  return Ok();
}

Status AvailableVersions::ListDeltas(const Run& run, Version from, Version last) {
  return ListBelow(run.store(), kDeltasPrefix, Before(DeltaFolder(from, from + 1)), [&](const ObjectInfo& object) {
    const auto delta = DeltaOfKey(object.key);
    if (!delta.has_value() || delta->to != delta->from + 1) return true;
    if (delta->to > last) return false;
    parts_.insert(object.key);
    with_parts_.insert(delta->to);
    return true;
  });
}

std::optional<std::uint64_t> AvailableVersions::AnchorBytes(Version version) const {
  const auto at = anchors_.find(version);
  return at == anchors_.end() ? std::nullopt : std::optional(at->second);
}

std::optional<Version> AvailableVersions::NextAnchor(Version version) const {
  const auto at = anchors_.upper_bound(version);
  return at == anchors_.end() ? std::nullopt : std::optional(at->first);
}

bool AvailableVersions::HasParts(const Record& record) const {
  return record.delta.has_value() && std::all_of(record.delta->begin(), record.delta->end(),
                                                 [&](const PartRef& part) { return parts_.contains(part.key); });
}

bool AvailableVersions::Next(const Record& record) {
  before_ = anchors_.contains(record.version) || (before_ && HasParts(record));
  return before_;
}

}  // namespace weightwire
