// Decides what becomes of the versions that an earlier process has spooled, when a publisher starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "log/run.h"
#include "publish/spool.h"

namespace weightwire {

// Returns the versions that are still to be published, in order, and removes the others: those that are committed, and
// those that are damaged or follow a damaged one. kMismatch if another writer has taken the place of one, unless
// `drop_lost`, which removes such versions, or if the spool belongs to another run. `directory` names it in messages.
Result<std::vector<SpoolEntry>> RecoverSpool(const Run& run, Spool& spool, const std::string& directory,
                                             const std::optional<KnownRecord>& newest, bool drop_lost);

}  // namespace weightwire
