// The times, counts and shares by which publishers work. ARCHITECTURE.md, "Timeouts, retries and limits", lists them
// with those of the other folders; ./dev lint compares the two. Options of a publisher override the first six.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace weightwire {

// A publisher is full when this many versions, or bytes of parts, wait to be committed.
inline constexpr std::uint64_t kMaxWaitingVersions = 16;
inline constexpr std::uint64_t kMaxWaitingBytes = std::uint64_t{4} << 30;
// An anchor is due after this many versions, or when the deltas since the last one add up to this share of the model.
inline constexpr std::uint64_t kAnchorEveryVersions = 100;
inline constexpr std::uint64_t kAnchorEveryPercent = 100;
// An anchor that takes longer is started again under a new id, because gc deletes old objects without an anchor.json.
inline constexpr std::chrono::hours kMaxAnchorAge{12};
// A rank that sends no heartbeat for this long is declared dead.
inline constexpr std::chrono::minutes kRankDeadline{10};
// A rank's upload that is slower counts as hung.
inline constexpr std::uint64_t kSlowestPartBytesPerSecond = std::uint64_t{256} << 10;

// Shares of the deadline. A rank stops retrying before rank 0 declares it dead, and rank 0 decides before the ranks
// stop waiting for its verdict.
inline constexpr int kRankRetryPercent = 60;
inline constexpr int kVerdictPercent = 80;
inline constexpr int kHeartbeatsPerDeadline = 8;

// After n abandoned anchors in a row, no anchor starts for 8 * 2^n versions. n grows up to the second constant.
inline constexpr std::uint64_t kFirstAnchorPauseVersions = 8;
inline constexpr int kMaxAnchorPauseDoublings = 8;

// Rank 0 keeps this many verdicts, and ends of anchors, for ranks that have not read them.
inline constexpr std::size_t kMaxUnackedVerdicts = 256;
inline constexpr std::size_t kMaxEndedAnchors = 2;
// A publisher that starts examines this many of the newest anchors.
inline constexpr int kMaxAnchorsExamined = 8;

}  // namespace weightwire
