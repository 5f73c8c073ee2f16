#include "sim/sim_bucket.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "log/keys.h"

namespace weightwire::sim {
namespace {

bool IsForEver(std::string_view key) {
  return key == kRunManifestKey || key.starts_with("versions/") || key.starts_with("layouts/");
}

Error Dead() { return {ErrorCode::kUnavailable, "this machine is dead"}; }

}  // namespace

void Bucket::Store(std::string_view key, std::span<const std::uint8_t> bytes) {
  const auto at = objects_.find(key);
  const bool fresh = at == objects_.end();
  const bool changes =
      !fresh && !std::equal(bytes.begin(), bytes.end(), at->second.bytes.begin(), at->second.bytes.end());
  if (changes && !key.starts_with(kLeasesPrefix))
    world_.Violation(fmt::format("{} was overwritten with other bytes", key));
  objects_.insert_or_assign(std::string(key), Object{{bytes.begin(), bytes.end()}, world_.clock().Wall()});
  if (key.starts_with(kLeasesPrefix)) {
    const auto lease = ParseLease(TextOf(bytes));
    leases_[std::string(key)].push_back(
        {world_.now(), world_.clock().Wall(), lease.ok() ? std::optional(lease.value()) : std::nullopt});
  }
  if (fresh && key.starts_with("versions/") && on_record) on_record(key, bytes);
}

void Bucket::Put(std::string_view key, std::span<const std::uint8_t> bytes) {
  if (IsForEver(key)) world_.Violation(fmt::format("{} was put without asking whether it is there", key));
  Store(key, bytes);
  if (IsAnchorManifestKey(key) && on_manifest) on_manifest(key, bytes);
}

bool Bucket::PutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) {
  if (objects_.contains(key)) return false;
  Store(key, bytes);
  return true;
}

void Bucket::Remove(std::string_view key, const std::optional<LeaseReads>& reads) {
  if (IsForEver(key)) world_.Violation(fmt::format("{} was removed", key));
  if (objects_.contains(key) && (DeltaOfKey(key).has_value() || AnchorOfKey(key).has_value())) {
    if (!reads.has_value()) world_.Violation(fmt::format("{} was removed without a look at the leases", key));
    CheckLeases(key, reads.value_or(LeaseReads{world_.now(), {}}));
  }
  if (objects_.erase(std::string(key)) != 0) removed_.emplace(key);
  if (key.starts_with(kLeasesPrefix)) {
    leases_[std::string(key)].push_back({world_.now(), world_.clock().Wall(), std::nullopt});
  }
}

void Bucket::CheckLeases(std::string_view key, const LeaseReads& reads) {
  for (const auto& lease : leases_) {
    const std::string& name = lease.first;
    const std::vector<LeaseEvent>& history = lease.second;
    // A lease counts if it asked for the object both when the leases were listed and when it was read. One that was
    // renewed in between may ask for less; one that was dead before was put after the mark, which its follower sees.
    const auto asks = [&](std::uint64_t at) {
      const LeaseEvent* then = nullptr;
      for (const LeaseEvent& event : history) {
        if (event.at <= at) then = &event;
      }
      return then != nullptr && then->lease.has_value() && IsActive(*then->lease, then->time, world_.clock().Wall()) &&
             IsNeeded(*then->lease, key);
    };
    const auto got = reads.got_at.find(name);
    if (asks(reads.listed_at) && (got == reads.got_at.end() || asks(got->second))) {
      world_.Violation(fmt::format("{} was removed, which {} needs", key, name));
    }
  }
}

void Bucket::Later(std::string key, std::vector<std::uint8_t> bytes, bool only_if_absent) {
  late_.push_back({std::move(key), std::move(bytes), only_if_absent});
}

void Bucket::DeliverLate() {
  if (late_.empty()) return;
  const std::size_t which = world_.random().Below(late_.size());
  const LateWrite write = late_[which];
  late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(which));
  world_.Trace(fmt::format("late arrives {}", write.key));
  if (!write.only_if_absent) {
    Store(write.key, write.bytes);
  } else if (!objects_.contains(write.key)) {
    Store(write.key, write.bytes);
  }
}

Status BucketClient::Send(std::string_view what, std::string_view key) {
  World& world = machine_.world();
  if (world.faults() && world.random().Below(20) == 0) bucket_.DeliverLate();
  if (!world.Effect(machine_, what, key)) return Dead();
  const bool is_down = unplugged_ || (world.faults() && world.clock().Monotonic() < down_until_);
  if (is_down || world.Chance(world.rates().unavailable)) {
    world.Trace("unavailable");
    return Error(ErrorCode::kUnavailable, "the network is down");
  }
  return Ok();
}

void BucketClient::Damage(std::span<std::uint8_t> bytes) {
  World& world = machine_.world();
  if (bytes.empty() || !world.Chance(world.rates().damaged_read)) return;
  world.Trace("damaged");
  bytes[world.random().Below(bytes.size())] ^= static_cast<std::uint8_t>(1 + world.random().Below(255));
}

BucketClient::Fate BucketClient::WriteFate() {
  World& world = machine_.world();
  if (!world.Chance(world.rates().lost_answer)) return Fate::kAnswered;
  const std::uint64_t which = world.random().Below(3);
  world.Trace(fmt::format("answer lost {}", which));
  if (longest_outage_.count() != 0 && world.random().Below(2) == 0) {
    down_until_ =
        world.clock().Monotonic() + longest_outage_ / 10 * static_cast<std::int64_t>(1 + world.random().Below(10));
    world.Trace(machine_.name() + " cannot reach the bucket for a while");
  }
  return which == 0 ? Fate::kLostDone : which == 1 ? Fate::kLostNotDone : Fate::kLostLater;
}

Result<WallTime> BucketClient::Now() {
  WW_RETURN_IF_ERROR(Send("now", ""));
  return machine_.world().clock().Wall();
}

Result<std::vector<std::uint8_t>> BucketClient::DoGet(std::string_view key, std::uint64_t max_bytes) {
  WW_RETURN_IF_ERROR(Send("get", key));
  if (lease_check_ != nullptr) lease_check_->OnFetch(key);
  if (lease_reads_.has_value() && key.starts_with(kLeasesPrefix)) {
    lease_reads_->got_at[std::string(key)] = machine_.world().now();
  }
  const auto at = bucket_.objects().find(key);
  if (at == bucket_.objects().end()) return ObjectNotFound(key, *this);
  if (at->second.bytes.size() > max_bytes) return ObjectTooLarge(key, *this, at->second.bytes.size(), max_bytes);
  // Small objects come whole or not at all: they have no hash to check them by. What a damaged one does is the business
  // of the parsers' own tests.
  return at->second.bytes;
}

Status BucketClient::DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) {
  WW_RETURN_IF_ERROR(Send("read", key));
  if (lease_check_ != nullptr) lease_check_->OnFetch(key);
  const auto at = bucket_.objects().find(key);
  if (at == bucket_.objects().end()) return ObjectNotFound(key, *this);
  const auto& bytes = at->second.bytes;
  if (offset > bytes.size() || out.size() > bytes.size() - offset) {
    return ObjectEndsEarly(key, *this, offset + out.size(), bytes.size());
  }
  std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
  Damage(out);
  return Ok();
}

Status BucketClient::DoPut(std::string_view key, std::span<const std::uint8_t> bytes) {
  WW_RETURN_IF_ERROR(Send("put", key));
  const Fate fate = WriteFate();
  if (fate == Fate::kAnswered || fate == Fate::kLostDone) bucket_.Put(key, bytes);
  if (fate == Fate::kLostLater) bucket_.Later(std::string(key), {bytes.begin(), bytes.end()}, false);
  if (fate != Fate::kAnswered) return Error(ErrorCode::kUnknownOutcome, "the answer was lost");
  if (lease_check_ != nullptr && key.starts_with(kLeasesPrefix)) {
    if (const auto lease = ParseLease(TextOf(bytes)); lease.ok()) lease_check_->OnLeaseWritten(lease.value());
  }
  return Ok();
}

Result<PutOutcome> BucketClient::DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) {
  WW_RETURN_IF_ERROR(Send("create", key));
  const Fate fate = WriteFate();
  if (fate == Fate::kLostLater) bucket_.Later(std::string(key), {bytes.begin(), bytes.end()}, true);
  bool created = false;
  if (fate == Fate::kAnswered || fate == Fate::kLostDone) created = bucket_.PutIfAbsent(key, bytes);
  if (fate != Fate::kAnswered) return Error(ErrorCode::kUnknownOutcome, "the answer was lost");
  return created ? PutOutcome::kCreated : PutOutcome::kExists;
}

Result<ObjectInfo> BucketClient::DoStat(std::string_view key) {
  WW_RETURN_IF_ERROR(Send("stat", key));
  const auto at = bucket_.objects().find(key);
  if (at == bucket_.objects().end()) return ObjectNotFound(key, *this);
  return ObjectInfo{at->first, at->second.bytes.size(), at->second.last_modified};
}

Result<std::vector<ObjectInfo>> BucketClient::DoList(std::string_view prefix, std::string_view start_after,
                                                     std::size_t limit) {
  WW_RETURN_IF_ERROR(Send("list", prefix));
  if (lease_check_ != nullptr && prefix == kMarksPrefix) lease_check_->OnMarksListed();
  if (prefix == kLeasesPrefix) lease_reads_ = Bucket::LeaseReads{machine_.world().now(), {}};
  std::vector<ObjectInfo> found;
  for (auto at = bucket_.objects().upper_bound(start_after); at != bucket_.objects().end(); ++at) {
    if (!at->first.starts_with(prefix)) {
      if (at->first > prefix) break;
      continue;
    }
    if (found.size() == limit) break;
    found.push_back({at->first, at->second.bytes.size(), at->second.last_modified});
  }
  return found;
}

Status BucketClient::DoRemove(std::string_view key) {
  WW_RETURN_IF_ERROR(Send("remove", key));
  if (lease_check_ != nullptr && key.starts_with(kLeasesPrefix)) lease_check_->OnLeaseRemoved();
  const Fate fate = WriteFate();
  if (fate == Fate::kAnswered || fate == Fate::kLostDone) bucket_.Remove(key, lease_reads_);
  if (fate != Fate::kAnswered) return Error(ErrorCode::kUnknownOutcome, "the answer was lost");
  return Ok();
}

}  // namespace weightwire::sim
