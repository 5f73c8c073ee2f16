// Which version of a run a state is.
#pragma once

#include <optional>

#include "base/result.h"
#include "base/sha256.h"
#include "log/run.h"

namespace weightwire {

// The newest version whose state is this one, among the newest thousand; nothing if there is none.
Result<std::optional<KnownRecord>> FindVersionByState(const Run& run, const Sha256Digest& state);

}  // namespace weightwire
