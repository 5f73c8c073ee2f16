#include "cli/adopt.h"

#include <utility>

#include "cli/progress.h"

namespace weightwire {

Result<std::optional<KnownRecord>> FindVersionByState(const Run& run, const Sha256Digest& state) {
  constexpr int kVersionsLookedAt = 1'000;
  WW_TRY(std::optional<KnownRecord> record, run.FindNewest(std::nullopt));
  for (int i = 0; i < kVersionsLookedAt && record.has_value(); ++i) {
    if (record->record.state == state) return record;
    if (record->record.version == 0) break;
    WW_TRY(record, run.ReadRecord(record->record.version - 1));
  }
  return std::optional<KnownRecord>();
}

Status AdoptByDigest(const Run& run, Mirror& mirror) {
  WW_TRY(const auto newest, run.FindNewest(std::nullopt));
  if (!newest.has_value()) return Ok();
  WW_TRY(const Layout layout, run.ReadLayout(newest->record.layout));
  const Progress progress("digesting what lies there");
  const auto state = mirror.DigestAs(layout);
  // No checkpoint, or one of another layout: it will be loaded whole.
  if (!state.ok()) return state.error().code() == ErrorCode::kIo ? Status(state.error()) : Ok();
  WW_TRY(const auto version, FindVersionByState(run, state.value()));
  if (!version.has_value()) return Ok();
  return mirror.Adopt(HeldOf(*version), layout);
}

}  // namespace weightwire
