#include "publish/anchor_policy.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/failure_policy.h"
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

// Not the one that the newest record names alone: an anchor by policy is complete only after its version's record, and
// without it every start would find one due.
Result<std::optional<KnownAnchor>> FindNewestAnchor(const Run& run, const Record& newest) {
  WW_TRY(std::vector<AnchorName> names, run.ListAnchors(newest.chain));
  std::erase_if(names, [&](const AnchorName& name) { return name.version > newest.version; });
  for (int i = 0; i < kMaxAnchorsExamined && !names.empty(); ++i, names.pop_back()) {
    auto anchor = run.ReadAnchor(names.back());
    if (!anchor.ok()) {
      if (MaySucceedLater(anchor.error())) return anchor.error();
      continue;  // gone or damaged
    }
    WW_TRY(const auto record, run.ReadRecord(names.back().version));
    const bool fits = record.has_value() && HasStateOf(record->record, anchor.value()) &&
                      !Contradicts(record->record, anchor.value()) && !Contradicts(newest, anchor.value());
    if (fits) return std::optional(std::move(anchor).value());
  }
  return std::optional<KnownAnchor>();
}

void AnchorBackoff::Abandoned(Version newest) {
  in_a_row_ = std::min(in_a_row_ + 1, kMaxAnchorPauseDoublings);
  first_allowed_ = newest + (kFirstAnchorPauseVersions << in_a_row_);
}

}  // namespace weightwire
