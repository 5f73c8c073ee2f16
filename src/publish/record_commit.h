// Puts what makes a version: the parts of its delta, then its record, the one step that makes it exist
// (spec/PROTOCOL.md, "Duties of a writer", 5).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "log/run.h"
#include "store/read_back.h"

namespace weightwire {

// Puts a part under its key. `again`: an earlier attempt may have put it, so it is looked for first.
Status PutPart(Store& store, const PartRef& part, std::span<const std::uint8_t> bytes, bool again);

// Creates the record, or finds out whose it is. In a run with a single writer by get, put, get, since put-if-absent
// cannot be relied on there. Errors as PutAndReadBack's: asking again with the same bytes is always right.
Result<ReadBackOutcome> CommitRecord(const Run& run, Version version, std::string_view record_json);

// "version 3 of … is the record of another writer (…)", to go on with.
[[nodiscard]] std::string WhoseRecord(const Run& run, Version version);

// One sentence for a publisher that lost: whose record is in the place of its own. `spooled`: its versions are in a
// spool, and so in the way of its next start.
[[nodiscard]] Error AnotherWriterWon(const Run& run, Version version, bool spooled);

}  // namespace weightwire
