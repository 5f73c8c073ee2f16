#include "log/gc.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/failure_policy.h"
#include "base/threads.h"
#include "log/limits.h"
#include "store/probe.h"
#include "store/read_back.h"

namespace weightwire {
namespace {

// Things that one mark names. A run that was never collected takes several passes.
constexpr std::size_t kMaxRemovals = std::size_t{1} << 16;
constexpr std::uint64_t kMaxSurveyedAnchors = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxFolderObjects = std::uint64_t{1} << 20;

GcAmount AmountOf(const Removal& removal) { return {removal.objects, removal.bytes}; }

GcStep Worked(std::string text) { return {GcStep::What::kWorked, {}, std::move(text)}; }

}  // namespace

Collector::Collector(Run run, const GcOptions& options, Random& random)
    : run_(std::move(run)), options_(options), mark_id_(NewId(random)) {
  WW_CHECK(CheckPolicy(options.policy).ok());
}

Result<GcStep> Collector::Step() {
  switch (phase_) {
    case Phase::kBegin:
      return Begin();
    case Phase::kChains:
      return FollowChains();
    case Phase::kListAnchors:
      return ListAnchors();
    case Phase::kExamine:
      return Examine();
    case Phase::kListDeltas:
      return ListDeltas();
    case Phase::kPutMark:
      return PutMark();
    case Phase::kGrace:
      return WaitForGrace();
    case Phase::kReadLeasesAgain:
      return ReadLeasesAgain();
    case Phase::kRemove:
      return RemoveNext();
    case Phase::kRemoveMark:
      return RemoveMark();
    case Phase::kRemoveOldMarks:
      return RemoveOldMarks();
    case Phase::kRemoveExpiredLeases:
      return RemoveExpired(kLeasesPrefix, Phase::kRemoveExpiredProbes);
    case Phase::kRemoveExpiredProbes:
      return RemoveExpired(kProbesPrefix, Phase::kDone);
    case Phase::kDone:
      break;
  }
  return GcStep{GcStep::What::kDone, {}, ""};
}

GcStep Collector::Block(std::string why) {
  progress_.blocked = why;
  return Done(std::move(why));
}

GcStep Collector::Done(std::string text) {
  phase_ = Phase::kDone;
  return {GcStep::What::kDone, {}, std::move(text)};
}

// --- the survey ---

Result<GcStep> Collector::Begin() {
  if (!options_.dry_run) WW_RETURN_IF_ERROR(run_.CheckMayWrite());
  // The clock first: what is put meanwhile looks young.
  WW_TRY(now_, run_.store().Now());
  WW_TRY(const auto newest, run_.FindNewest(std::nullopt));
  if (!newest.has_value()) return Block("the run has no versions");
  WW_TRY(const auto marks, run_.ReadMarksWithTimes());
  WW_TRY(leases_, run_.ReadActiveLeases());
  progress_.active_leases = leases_.leases.size();
  progress_.unreadable_leases = leases_.damaged.size();
  if (!leases_.damaged.empty()) {
    return Block(
        fmt::format("deleted nothing: {} is unreadable and may be an active lease; it expires after {} seconds",
                    leases_.damaged.front().key, kMaxLeaseSeconds));
  }
  for (const KnownMark& known : marks) {
    if (now_ - known.last_modified < options_.grace + kStoreClockSlack) continue;
    old_marks_.push_back({known.mark.id, {known.mark.keys.begin(), known.mark.keys.end()}, {}});
  }
  versions_.newest = newest->record.version;
  newest_ = newest->record;
  versions_.chains = {newest->record.chain};
  phase_ = Phase::kChains;
  return Worked(fmt::format("the newest version is {}", versions_.newest));
}

Result<GcStep> Collector::FollowChains() {
  const Version first = versions_.chains.back();
  if (first <= OldestWanted(versions_.newest, options_.policy)) {
    phase_ = Phase::kListAnchors;
    return Worked(fmt::format("deltas lead to it from version {} on", versions_.chains.front()));
  }
  // A chain that does not begin at version 0 begins with a rebase: the version before is the end of another.
  WW_TRY(const auto before, run_.ReadRecord(first - 1));
  if (!before.has_value()) {
    return Corrupt(fmt::format("the record of version {} is missing from {}", first - 1, run_.store().Name()));
  }
  versions_.chains.push_back(before->record.chain);
  return Worked(fmt::format("version {} is a rebase", first));
}

void Collector::CountSeen(const ObjectInfo& object, const std::string& folder) {
  ++progress_.seen.objects;
  progress_.seen.bytes += object.size_bytes;
  for (OldMark& mark : old_marks_) {
    if (mark.keys.contains(folder)) mark.left.insert(folder);
    if (mark.keys.contains(object.key)) mark.left.insert(object.key);
  }
}

Result<GcStep> Collector::ListAnchors() {
  WW_TRY(const auto page, run_.store().List(kAnchorsPrefix, after_, kPageEntries));
  for (const ObjectInfo& object : page) {
    const auto name = AnchorOfKey(object.key);
    if (!name.has_value()) continue;  // none of ours
    CountSeen(object, AnchorFolder(*name));
    if (anchors_.empty() || anchors_.back().name != *name) {
      anchors_.push_back({*name, AnchorCondition::kIncomplete, 0, 0, object.last_modified});
    }
    SurveyedAnchor& anchor = anchors_.back();
    ++anchor.objects;
    anchor.bytes += object.size_bytes;
    anchor.youngest = std::max(anchor.youngest, object.last_modified);
    if (IsAnchorManifestKey(object.key)) anchor.condition = AnchorCondition::kUnexamined;
  }
  if (anchors_.size() > kMaxSurveyedAnchors) {
    return Error(ErrorCode::kLimit,
                 fmt::format("there are more than {} anchors in {}", kMaxSurveyedAnchors, run_.store().Name()));
  }
  if (page.size() == kPageEntries) {
    after_ = page.back().key;
  } else {
    after_.clear();
    phase_ = Phase::kExamine;
  }
  return Worked(fmt::format("listed {} anchors", anchors_.size()));
}

Result<AnchorCondition> Collector::ConditionOf(const AnchorName& name) const {
  const auto anchor = run_.ReadAnchor(name);
  if (!anchor.ok()) {
    if (anchor.error().code() == ErrorCode::kNotFound) return AnchorCondition::kIncomplete;  // removed meanwhile
    if (IsUnreadable(anchor.error())) return AnchorCondition::kBroken;
    return anchor.error();
  }
  WW_TRY(const auto record, run_.ReadRecord(name.version));
  if (!record.has_value()) {
    return Corrupt(fmt::format("the record of version {} is missing from {}", name.version, run_.store().Name()));
  }
  const AnchorManifest& manifest = anchor.value().manifest;
  if (Contradicts(record->record, anchor.value()) || Contradicts(newest_, anchor.value())) {
    return AnchorCondition::kBroken;  // no reader takes it
  }
  if (!HasStateOf(record->record, anchor.value())) return AnchorCondition::kConflict;
  // Names and sizes; bytes are for `verify`.
  std::map<std::string, std::uint64_t, std::less<>> sizes;
  const std::string folder = AnchorFolder(name);
  std::string after;
  for (;;) {
    WW_TRY(const auto page, run_.store().List(folder, after, kPageEntries));
    for (const ObjectInfo& object : page) sizes.emplace(object.key.substr(folder.size()), object.size_bytes);
    if (page.size() < kPageEntries || sizes.size() > kMaxFolderObjects) break;
    after = page.back().key;
  }
  const bool whole = std::all_of(manifest.files.begin(), manifest.files.end(), [&](const AnchorFile& file) {
    const auto at = sizes.find(file.name);
    return at != sizes.end() && at->second == file.size_bytes;
  });
  return whole ? AnchorCondition::kWhole : AnchorCondition::kBroken;
}

Result<GcStep> Collector::Examine() {
  kept_ = ChooseKept(versions_, anchors_, options_.policy);
  const auto unexamined = std::find_if(anchors_.begin(), anchors_.end(), [&](const SurveyedAnchor& anchor) {
    return anchor.condition == AnchorCondition::kUnexamined && kept_.anchors.contains(anchor.name);
  });
  if (unexamined != anchors_.end()) {
    WW_TRY(unexamined->condition, ConditionOf(unexamined->name));
    return Worked(fmt::format("looked at {}", AnchorFolder(unexamined->name)));
  }
  if (!kept_.deltas_after.has_value()) {
    return Block(
        fmt::format("deleted nothing: no whole anchor leads to version {}; write one with `weightwire anchor` on a "
                    "machine that holds the version",
                    versions_.newest));
  }
  for (const SurveyedAnchor& anchor : anchors_) {
    const KeepRule rule = RuleFor(anchor, kept_, versions_.newest, now_, options_.policy);
    if (rule == KeepRule::kNone) {
      Add(RemovalOf(anchor));
    } else {
      CountKept(rule, {anchor.objects, anchor.bytes});
    }
  }
  phase_ = Phase::kListDeltas;
  return Worked(
      fmt::format("{} anchors stay, and the deltas after version {}", kept_.anchors.size(), *kept_.deltas_after));
}

bool Collector::IsLeased(const Removal& removal) const {
  return std::any_of(leases_.leases.begin(), leases_.leases.end(),
                     [&](const KnownLease& known) { return NeededBy(known.lease, removal); });
}

bool Collector::IsFull() const { return deletable_.size() >= kMaxRemovals; }

void Collector::Add(Removal removal) {
  if (IsLeased(removal)) {
    progress_.kept.by_leases += AmountOf(removal);
    return;
  }
  if (IsFull()) {
    progress_.more = true;
    return;
  }
  progress_.deletable += AmountOf(removal);
  deletable_.push_back(std::move(removal));
}

void Collector::CountKept(KeepRule rule, GcAmount amount) {
  GcKept& kept = progress_.kept;
  switch (rule) {
    case KeepRule::kNone:
      break;
    case KeepRule::kUncommitted:
      kept.uncommitted += amount;
      break;
    case KeepRule::kAnchors:
      kept.by_anchors += amount;
      break;
    case KeepRule::kVersions:
      kept.by_versions += amount;
      break;
    case KeepRule::kMinimumAge:
      kept.by_minimum_age += amount;
      break;
  }
}

Result<GcStep> Collector::ListDeltas() {
  // All but the last are complete; and the last too, once there is nothing more.
  if (folders_.size() > (listed_all_ ? 0 : 1)) {
    WW_RETURN_IF_ERROR(JudgeFolder(folders_.front()));
    folders_.pop_front();
    return Worked(fmt::format("{} keys are deletable", deletable_.size()));
  }
  if (IsFull() && !listed_all_) progress_.more = true;
  if (listed_all_ || progress_.more) return SurveyDone();
  WW_TRY(const auto page, run_.store().List(kDeltasPrefix, after_, kPageEntries));
  for (const ObjectInfo& object : page) {
    const auto delta = DeltaOfKey(object.key);
    if (!delta.has_value()) continue;  // none of ours
    CountSeen(object, DeltaFolder(delta->from, delta->to));
    const bool fresh = folders_.empty() || folders_.back().delta.name.from != delta->from ||
                       folders_.back().delta.name.to != delta->to;
    if (fresh) folders_.push_back({{*delta, 0, 0, object.last_modified}, {}});
    Folder& folder = folders_.back();
    ++folder.delta.objects;
    folder.delta.bytes += object.size_bytes;
    folder.delta.youngest = std::max(folder.delta.youngest, object.last_modified);
    folder.objects.push_back(object);
    if (folder.delta.objects > kMaxFolderObjects) {
      return Error(ErrorCode::kLimit, fmt::format("there are more than {} objects below {} in {}", kMaxFolderObjects,
                                                  DeltaFolder(delta->from, delta->to), run_.store().Name()));
    }
  }
  listed_all_ = page.size() < kPageEntries;
  if (!listed_all_) after_ = page.back().key;
  return Worked(fmt::format("listed {} objects", progress_.seen.objects));
}

Status Collector::JudgeFolder(const Folder& folder) {
  const SurveyedDelta& delta = folder.delta;
  const KeepRule rule = RuleFor(delta, kept_, versions_.newest, now_, options_.policy);
  if (rule == KeepRule::kNone) {
    Add(RemovalOf(delta));
    return Ok();
  }
  WW_TRY(std::vector<Removal> unnamed, UnnamedParts(folder));
  GcAmount kept{delta.objects, delta.bytes};
  for (Removal& removal : unnamed) {
    kept -= AmountOf(removal);
    Add(std::move(removal));
  }
  CountKept(rule, kept);
  return Ok();
}

Result<std::vector<Removal>> Collector::UnnamedParts(const Folder& folder) const {
  const SurveyedDelta& delta = folder.delta;
  std::vector<Removal> unnamed;
  // Of versions to come it is not known yet.
  if (delta.name.to > versions_.newest || delta.name.to != delta.name.from + 1) return unnamed;
  const auto is_old = [&](const ObjectInfo& object) { return IsOld(object.last_modified, now_, options_.policy); };
  if (std::none_of(folder.objects.begin(), folder.objects.end(), is_old)) return unnamed;
  const auto record = run_.ReadRecord(delta.name.to);
  if (!record.ok()) {
    if (IsUnreadable(record.error())) return unnamed;  // keep the whole folder, because the record may name any of it
    return record.error();
  }
  if (!record.value().has_value()) {
    return Corrupt(fmt::format("the record of version {} is missing from {}", delta.name.to, run_.store().Name()));
  }
  std::set<std::string> named;
  for (const PartRef& part : record.value()->record.delta.value_or(std::vector<PartRef>())) named.insert(part.key);
  for (const ObjectInfo& object : folder.objects) {
    if (!is_old(object) || named.contains(object.key)) continue;
    // A mark names parts and folders of parts, nothing deeper.
    if (object.key.find('/', DeltaFolder(delta.name.from, delta.name.to).size()) != std::string::npos) continue;
    Removal removal;
    removal.key = object.key;
    removal.delta = delta.name;
    removal.objects = 1;
    removal.bytes = object.size_bytes;
    unnamed.push_back(std::move(removal));
  }
  return unnamed;
}

GcStep Collector::SurveyDone() {
  folders_.clear();
  listed_all_ = false;  // of what comes next
  if (options_.dry_run) {
    return Done(
        fmt::format("{} objects of {} bytes are deletable", progress_.deletable.objects, progress_.deletable.bytes));
  }
  if (deletable_.empty()) {
    phase_ = Phase::kRemoveOldMarks;
    return Worked("nothing is deletable");
  }
  // What was said long enough ago need not be waited for. It is said again all the same: the other collector may be
  // alive, and take its own mark away when it is done.
  wait_for_grace_ = std::any_of(deletable_.begin(), deletable_.end(), [&](const Removal& removal) {
    return std::none_of(old_marks_.begin(), old_marks_.end(), [&](const OldMark& mark) {
      return mark.keys.contains(removal.key) ||
             (removal.delta.has_value() && mark.keys.contains(DeltaFolder(removal.delta->from, removal.delta->to)));
    });
  });
  phase_ = Phase::kPutMark;
  return Worked(
      fmt::format("{} objects of {} bytes are deletable", progress_.deletable.objects, progress_.deletable.bytes));
}

// --- saying it, and doing it ---

Result<GcStep> Collector::PutMark() {
  Mark mark;
  mark.run = run_.id();
  mark.id = mark_id_;
  for (const Removal& removal : deletable_) mark.keys.push_back(removal.key);
  const std::string key = MarkKey(mark_id_);
  WW_TRY(const ReadBackOutcome outcome, PutAndReadBack(run_.store(), key, BytesOf(ToJson(mark))));
  if (outcome != ReadBackOutcome::kOurs) {
    return Corrupt(
        fmt::format("{} of {} holds another's mark, although its name was drawn at random", key, run_.store().Name()));
  }
  phase_ = Phase::kGrace;
  return Worked(fmt::format("put {}", key));
}

Result<GcStep> Collector::WaitForGrace() {
  const auto mark = run_.store().Stat(MarkKey(mark_id_));
  if (!mark.ok()) {
    if (mark.error().code() != ErrorCode::kNotFound) return mark.error();
    return Block(fmt::format("{} is gone: somebody else has done the work, or wants it left", MarkKey(mark_id_)));
  }
  if (wait_for_grace_) {
    WW_TRY(const WallTime now, run_.store().Now());
    const auto left = mark.value().last_modified + options_.grace + kStoreClockSlack - now;
    if (left.count() > 0) return GcStep{GcStep::What::kWaits, left, "waiting for the grace time"};
  }
  phase_ = Phase::kReadLeasesAgain;
  return Worked("the grace time is over");
}

Result<bool> Collector::Withdraw() {
  if (phase_ < Phase::kPutMark) return true;
  if (phase_ > Phase::kReadLeasesAgain) return false;
  // Also where it is not known whether it was put.
  WW_RETURN_IF_ERROR(run_.store().Remove(MarkKey(mark_id_)));
  return true;
}

Result<GcStep> Collector::ReadLeasesAgain() {
  WW_TRY(leases_, run_.ReadActiveLeases());
  progress_.active_leases = leases_.leases.size();
  progress_.unreadable_leases = leases_.damaged.size();
  if (!leases_.damaged.empty()) {
    phase_ = Phase::kRemoveMark;
    progress_.blocked =
        fmt::format("deleted nothing: {} is unreadable and may be an active lease", leases_.damaged.front().key);
    return Worked(progress_.blocked);
  }
  for (const Removal& removal : deletable_) {
    if (!IsLeased(removal)) {
      to_remove_.push_back(removal);
      continue;
    }
    progress_.kept.by_leases += AmountOf(removal);
    progress_.deletable -= AmountOf(removal);
  }
  phase_ = Phase::kRemove;
  return Worked(fmt::format("read {} leases", leases_.leases.size()));
}

Result<Collector::Found> Collector::FillQueue(const Removal& removal) {
  Store& store = run_.store();
  if (!removal.key.ends_with('/')) {
    auto info = store.Stat(removal.key);
    if (!info.ok() && info.error().code() != ErrorCode::kNotFound) return info.error();
    if (!info.ok()) return Found::kNothing;
    queue_.push_back(std::move(info).value());
    return Found::kSome;
  }
  if (removal.anchor.has_value()) {
    // An anchor is whole or gone: its list goes first.
    auto manifest = store.Stat(AnchorManifestKey(*removal.anchor));
    if (!manifest.ok() && manifest.error().code() != ErrorCode::kNotFound) return manifest.error();
    if (manifest.ok()) {
      if (removal.incomplete && !touched_) return Found::kCompleted;
      queue_.push_back(std::move(manifest).value());
      return Found::kSome;
    }
  }
  WW_TRY(auto page, store.List(removal.key, "", kPageEntries));
  std::move(page.begin(), page.end(), std::back_inserter(queue_));
  return queue_.empty() ? Found::kNothing : Found::kSome;
}

Result<GcStep> Collector::RemoveNext() {
  if (removing_ == to_remove_.size()) {
    phase_ = Phase::kRemoveMark;
    return Worked(fmt::format("removed {} objects", progress_.removed.objects));
  }
  const Removal& removal = to_remove_[removing_];
  if (queue_.empty()) {
    WW_TRY(const Found found, FillQueue(removal));
    if (found == Found::kSome) return Worked(fmt::format("listed {}", removal.key));
    for (OldMark& mark : old_marks_) {
      if (found == Found::kCompleted) break;
      std::erase_if(mark.left, [&](const std::string& key) {
        return removal.key.ends_with('/') ? key.starts_with(removal.key) : key == removal.key;
      });
    }
    ++removing_;
    touched_ = false;
    return Worked(fmt::format("{} is done", removal.key));
  }
  // In any order: what goes first was queued alone.
  const std::size_t count = std::min(queue_.size(), options_.remove_threads);
  std::vector<Status> removed(count);
  ThreadPool requests(count);
  requests.ParallelFor(count, [&](std::size_t i, std::size_t) { removed[i] = run_.store().Remove(queue_[i].key); });
  GcStep step = Worked(fmt::format("removed {}", queue_.front().key));
  for (const Status& status : removed) {
    WW_RETURN_IF_ERROR(status);
    ++progress_.removed.objects;
    progress_.removed.bytes += queue_.front().size_bytes;
    touched_ = true;
    queue_.pop_front();
  }
  return step;
}

Result<GcStep> Collector::RemoveMark() {
  WW_RETURN_IF_ERROR(run_.store().Remove(MarkKey(mark_id_)));
  phase_ = Phase::kRemoveOldMarks;
  return Worked(fmt::format("removed {}", MarkKey(mark_id_)));
}

Result<GcStep> Collector::RemoveOldMarks() {
  // Its collector may be alive and only slow. So the mark stays as long as there is anything that one might remove; and
  // a survey that was cut short does not know.
  while (!old_marks_.empty() && (progress_.more || !old_marks_.back().left.empty())) old_marks_.pop_back();
  if (old_marks_.empty()) {
    after_.clear();
    phase_ = Phase::kRemoveExpiredLeases;
    return Worked(fmt::format("removed {} objects of {} bytes", progress_.removed.objects, progress_.removed.bytes));
  }
  const std::string key = MarkKey(old_marks_.back().id);
  WW_RETURN_IF_ERROR(run_.store().Remove(key));
  old_marks_.pop_back();
  return Worked(fmt::format("removed {}, of which nothing is left", key));
}

// --- what others left behind ---

Result<GcStep> Collector::RemoveExpired(std::string_view prefix, Phase next) {
  Store& store = run_.store();
  // Older than any lease can live, and than the minimum age besides: nobody counts on it.
  const auto is_left = [&](const ObjectInfo& object) {
    return IsOld(object.last_modified + std::chrono::seconds(kMaxLeaseSeconds) + kStoreClockSlack, now_,
                 options_.policy);
  };
  if (queue_.empty()) {
    WW_TRY(const auto page, store.List(prefix, after_, kPageEntries));
    std::copy_if(page.begin(), page.end(), std::back_inserter(queue_), is_left);
    if (page.size() == kPageEntries) {
      after_ = page.back().key;
    } else {
      after_.clear();
      listed_all_ = true;
    }
  } else {
    // Its follower may have come back since.
    const auto there = store.Stat(queue_.front().key);
    if (!there.ok() && there.error().code() != ErrorCode::kNotFound) return there.error();
    if (there.ok() && is_left(there.value())) {
      WW_RETURN_IF_ERROR(store.Remove(queue_.front().key));
      ++progress_.expired.objects;
      progress_.expired.bytes += there.value().size_bytes;
    }
    queue_.pop_front();
  }
  if (!queue_.empty() || !listed_all_) return Worked(fmt::format("looking for what is left below {}", prefix));
  listed_all_ = false;
  phase_ = next;
  if (next != Phase::kDone) return Worked(fmt::format("nothing old is left below {}", prefix));
  return Done(fmt::format("removed {} objects of {} bytes", progress_.removed.objects, progress_.removed.bytes));
}

}  // namespace weightwire
