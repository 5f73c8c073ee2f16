// Creates an object only if it is absent, and reads it back when the answer does not tell whose object it is.
//
// A put-if-absent can be answered "exists" although the object is ours: an earlier attempt succeeded and its answer was
// lost, perhaps before this process was started. So whenever the answer is not "created", the object is read back and
// compared. Equal bytes are ours; callers make sure that two writers never have equal bytes (records name their
// writer).
//
// Three layers use ReadBack, because each knows of lost answers that the others do not:
//   RetryStore      answers that were lost between its own attempts at one call.
//   PutAndReadBack  answers of earlier calls: RetryStore gave up, or this process crashed and was restarted.
//   CommitRecord    (publish/record_commit.h) runs with a single writer, whose store has no put-if-absent to rely on.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/limits.h"
#include "store/store.h"

namespace weightwire {

// Objects that are read back are small: at most this many bytes. Layouts may be the largest.
inline constexpr std::uint64_t kMaxReadBackBytes = kMaxLayoutBytes;

enum class ReadBackOutcome : std::uint8_t { kOurs, kConflict };

// Compares what is under `key` with `bytes`. nullopt if there is no object: it may still appear, because a request
// whose answer was lost may arrive late. An error if the object could not be read; then it may be ours.
Result<std::optional<ReadBackOutcome>> ReadBack(Store& store, std::string_view key,
                                                std::span<const std::uint8_t> bytes);

// Creates the object if it is absent, and otherwise reads back what is stored. Returns kOurs if the object is exactly
// `bytes`, otherwise kConflict; this is final, because these objects are never changed. After kUnknownOutcome, and no
// other error, the object may still become ours; calling again is always safe. kLimit for more than kMaxReadBackBytes.
Result<ReadBackOutcome> PutAndReadBack(Store& store, std::string_view key, std::span<const std::uint8_t> bytes);

}  // namespace weightwire
