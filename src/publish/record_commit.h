// Putting a record: the one step that makes a version (spec/PROTOCOL.md, "Duties of a writer", 5).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "log/run.h"
#include "store/commit.h"

namespace weightwire {

// Creates the record, or finds out whose it is. In a run with a single writer by get, put, get, since put-if-absent
// cannot be relied on there. Errors as Commit's: asking again with the same bytes is always right.
Result<CommitOutcome> CommitRecord(const Run& run, Version version, std::string_view record_json);

// One sentence for a publisher that lost: whose record is in the place of its own.
[[nodiscard]] Error AnotherWriterWon(const Run& run, Version version);

}  // namespace weightwire
