#include "follow/lease_keeper.h"

#include <algorithm>
#include <utility>

#include "base/failure_policy.h"

namespace weightwire {

LeaseKeeper::LeaseKeeper(Run run, const Id& id, LeaseOptions options, const Clock& clock)
    : run_(std::move(run)),
      id_(id),
      options_(std::move(options)),
      clock_(clock),
      lifetime_(std::chrono::seconds(options_.seconds)) {}

bool LeaseKeeper::IsAlive() const { return written_at_.has_value() && clock_.Monotonic() - *written_at_ < lifetime_; }

bool LeaseKeeper::IsDue(std::optional<Version> holds) const {
  if (!options_.keep) return false;
  if (NeedsTooLittle(holds) && !error_.has_value()) return true;
  const MonotonicTime now = clock_.Monotonic();
  if (failed_at_.has_value()) {
    if (error_.has_value()) return now - *failed_at_ >= lifetime_ / kRenewalsPerLease;
    return !IsAlive() || now - *failed_at_ >= lifetime_ / kLeaseTriesPerLifetime;
  }
  if (!written_at_.has_value()) return true;
  const auto age = now - *written_at_;
  const bool is_news = holds.has_value() && holds != holds_;
  const bool is_first = is_news && !holds_.has_value();  // operators wait to see it
  return age >= lifetime_ / kRenewalsPerLease || is_first || (is_news && age >= kLeaseNewsAfter);
}

bool LeaseKeeper::NeedsTooLittle(std::optional<Version> holds) const {
  return written_at_.has_value() && holds.has_value() && (!needs_from_.has_value() || *needs_from_ > *holds);
}

bool LeaseKeeper::Protects(const AnchorName& anchor) const {
  return !options_.keep || error_.has_value() || anchor_ == anchor;
}

Lease LeaseKeeper::LeaseFor(const LeaseNeeds& needs) const {
  Lease lease;
  lease.run = run_.id();
  lease.follower = id_;
  lease.name = options_.name;
  lease.seconds = options_.seconds;
  lease.holds = needs.holds;
  lease.needs_from = needs.holds;
  lease.needs_anchor = needs.anchor;
  const auto need_from = [&](Version version) {
    lease.needs_from = std::min(lease.needs_from.value_or(version), version);
  };
  if (needs.anchor.has_value()) need_from(needs.anchor->version);
  if (needs.loaded.has_value()) need_from(*needs.loaded);
  return lease;
}

Status LeaseKeeper::Renew(const LeaseNeeds& needs) {
  Status written = Write(needs);
  if (written.ok()) return written;
  // The lease that is still alive protects what it names. Anything else has to wait for a new one.
  const bool is_covered =
      IsAlive() && !NeedsTooLittle(needs.holds) && (!needs.anchor.has_value() || anchor_ == needs.anchor);
  if (!IsTransient(written.error()) || !is_covered) return written;
  failed_at_ = clock_.Monotonic();
  return Ok();
}

Status LeaseKeeper::Write(const LeaseNeeds& needs) {
  const MonotonicTime before = clock_.Monotonic();
  const Lease lease = LeaseFor(needs);
  // A write whose result is unknown may have replaced the lease.
  if (anchor_ != needs.anchor) anchor_.reset();
  needs_from_ = std::max(needs_from_, lease.needs_from);
  Status put = run_.PutLease(lease);
  if (!put.ok()) {
    if (IsTransient(put.error())) return put;
    failed_at_ = before;
    error_ = put.error();
    return Ok();
  }
  // Only now, because gc reads the leases after it has written its mark (spec/PROTOCOL.md, "Why it holds").
  WW_RETURN_IF_ERROR(ReadMarks());
  written_at_ = before;
  holds_ = needs.holds;
  needs_from_ = lease.needs_from;
  anchor_ = needs.anchor;
  failed_at_.reset();
  error_.reset();
  return Ok();
}

Status LeaseKeeper::ReadMarks() {
  WW_TRY(marks_, run_.ReadMarks(marks_));
  marked_ = {};
  for (const Mark& mark : marks_) {
    for (const std::string& key : mark.keys) {
      if (const auto anchor = AnchorOfKey(key); anchor.has_value()) marked_.anchors.insert(*anchor);
      if (const auto delta = DeltaOfKey(key); delta.has_value() && key.ends_with('/')) {
        marked_.deltas.insert(delta->to);
      }
    }
  }
  return Ok();
}

bool LeaseKeeper::IsMarked(const std::string& key) const {
  return std::ranges::any_of(marks_, [&](const Mark& mark) { return mark.Names(key); });
}

Status LeaseKeeper::Release() {
  if (!options_.keep || error_.has_value() || !written_at_.has_value()) return Ok();
  written_at_.reset();
  anchor_.reset();
  return run_.RemoveLease(id_);
}

}  // namespace weightwire
