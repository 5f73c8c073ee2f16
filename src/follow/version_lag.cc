#include "follow/version_lag.h"

#include <algorithm>

namespace weightwire {

void VersionLag::AddSeen(Version version) {
  newest_ = std::max(newest_.value_or(version), version);
  if (held_.has_value() && version <= *held_) return;
  if (newer_.empty() || newer_.back().first < version) newer_.emplace_back(version, clock_.Monotonic());
}

void VersionLag::SetHeld(Version version) {
  const bool went_back = held_.has_value() && version < *held_;
  held_ = version;
  if (went_back && newest_.has_value()) newer_ = {{*newest_, clock_.Monotonic()}};
  while (!newer_.empty() && newer_.front().first <= version) newer_.pop_front();
}

std::uint64_t VersionLag::versions() const {
  return held_.has_value() && newest_.has_value() && *newest_ > *held_ ? *newest_ - *held_ : 0;
}

std::chrono::nanoseconds VersionLag::behind() const {
  return newer_.empty() ? std::chrono::nanoseconds(0) : clock_.Monotonic() - newer_.front().second;
}

}  // namespace weightwire
