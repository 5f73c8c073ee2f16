// Which version a directory holds, found by its digest.
#pragma once

#include <optional>

#include "base/result.h"
#include "follow/mirror.h"
#include "log/run.h"

namespace weightwire {

// The newest version whose state is this one, among the newest thousand; nothing if there is none.
Result<std::optional<KnownRecord>> FindVersionByState(const Run& run, const Sha256Digest& state);

// Makes the mirror the version whose bits its files have. Files that are no version of the run stay as they are until
// one is loaded over them. REQUIRES: the mirror holds nothing.
Status AdoptByDigest(const Run& run, Mirror& mirror);

}  // namespace weightwire
