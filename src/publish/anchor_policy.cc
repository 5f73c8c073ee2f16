#include "publish/anchor_policy.h"

#include <algorithm>

#include "publish/policy.h"

namespace weightwire {
namespace {

bool IsMoreThan(std::uint64_t bytes, std::uint64_t percent, std::uint64_t model_bytes) {
  std::uint64_t hundredths = 0;
  std::uint64_t rest = 0;
  std::uint64_t share = 0;
  if (__builtin_mul_overflow(model_bytes / 100, percent, &hundredths) ||
      __builtin_mul_overflow(model_bytes % 100, percent, &rest) ||
      __builtin_add_overflow(hundredths, rest / 100, &share)) {
    return false;
  }
  return bytes > share;
}

}  // namespace

bool IsAnchorDue(const AnchorPolicy& policy, const std::optional<KnownAnchor>& last, Version version,
                 std::uint64_t delta_bytes, std::uint64_t model_bytes) {
  if (policy.every == 0 && policy.percent == 0) return false;
  if (!last.has_value()) return true;
  const AnchorManifest& manifest = last->manifest;
  const Version versions = version - std::min(version, manifest.name.version);
  const std::uint64_t since = delta_bytes - std::min(delta_bytes, manifest.delta_bytes);
  return (policy.every != 0 && versions >= policy.every) ||
         (policy.percent != 0 && IsMoreThan(since, policy.percent, model_bytes));
}

void AnchorBackoff::Abandoned(Version newest) {
  in_a_row_ = std::min(in_a_row_ + 1, kMaxAnchorPauseDoublings);
  first_allowed_ = newest + (kFirstAnchorPauseVersions << in_a_row_);
}

}  // namespace weightwire
