// Commits an object: creates it only if absent, and finds out whose it is when that is not plain.
//
// A put-if-absent can be answered "exists" although it was ours: an earlier attempt succeeded and its answer was lost,
// perhaps before this process was started. So whenever the answer is not "created", the object is read back and
// compared. Equal bytes are ours; callers make sure that two writers never have equal bytes (records name their
// writer).
//
// Three layers use ReadBack, because each knows of lost answers that the others do not:
//   RetryStore    answers that were lost between its own attempts at one call.
//   Commit        answers of earlier calls: RetryStore gave up, or this process crashed and was restarted.
//   CommitRecord  (publish/record_commit.h) runs with a single writer, whose store has no put-if-absent to rely on.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/limits.h"
#include "store/store.h"

namespace weightwire {

// An object that is committed is small: at most this many bytes. Layouts may be the largest.
inline constexpr std::uint64_t kMaxCommitBytes = kMaxLayoutBytes;

enum class CommitOutcome : std::uint8_t { kOurs, kConflict };

// Compares what is under `key` with `bytes`. nullopt if there is no object: it may still appear, because a request
// whose answer was lost may arrive late. An error if the object could not be read; then it may be ours.
Result<std::optional<CommitOutcome>> ReadBack(Store& store, std::string_view key, std::span<const std::uint8_t> bytes);

// What is under `key` now is exactly `bytes` (kOurs) or something else (kConflict), and will stay, since committed
// objects are never changed. An error of kUnknownOutcome is the only one after which it may yet come to be ours; asking
// again is always right. kLimit for more than kMaxCommitBytes.
Result<CommitOutcome> Commit(Store& store, std::string_view key, std::span<const std::uint8_t> bytes);

}  // namespace weightwire
