// What every writer of a run checks when it starts.
#pragma once

#include <optional>

#include "base/random.h"
#include "base/result.h"
#include "log/run.h"

namespace weightwire {

// Checks that put-if-absent lets only one of two writers win: kUnsupported if not, unless the run has a single writer.
Status CheckPutIfAbsent(const Run& run, Random& random);

// The newest complete anchor of the chain that is of its version's state; none if there is none.
Result<std::optional<KnownAnchor>> FindNewestAnchor(const Run& run, const Record& newest);

}  // namespace weightwire
