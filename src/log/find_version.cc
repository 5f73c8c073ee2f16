#include "log/find_version.h"

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

}  // namespace weightwire
