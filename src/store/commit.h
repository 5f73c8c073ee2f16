// Commits an object: creates it only if absent, and finds out whose it is when that is not plain.
//
// A put-if-absent can be answered "exists" although it was ours: an earlier attempt succeeded and its answer was lost,
// perhaps before this process was started. So whenever the answer is not "created", the object is read back and
// compared. Equal bytes are ours; whoever commits makes sure that two writers never have equal bytes (records name
// their writer).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/limits.h"
#include "store/store.h"

namespace weightwire {

// An object that is committed is small: at most this many bytes. Layouts may be the largest.
inline constexpr std::uint64_t kMaxCommitBytes = kMaxLayoutBytes;

enum class CommitOutcome : std::uint8_t { kOurs, kConflict };

// What is under `key` now is exactly `bytes` (kOurs) or something else (kConflict), and will stay, since committed
// objects are never changed. An error of kUnknownOutcome is the only one after which it may yet come to be ours; asking
// again is always right. kLimit for more than kMaxCommitBytes.
Result<CommitOutcome> Commit(Store& store, std::string_view key, std::span<const std::uint8_t> bytes);

}  // namespace weightwire
