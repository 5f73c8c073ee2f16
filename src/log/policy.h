// The times and counts by which leases live and gc deletes. ARCHITECTURE.md, "Timeouts, retries and limits", lists them
// with those of the other folders; ./dev lint compares the two. The sizes that readers accept are in log/limits.h.
#pragma once

#include <chrono>
#include <cstdint>

namespace weightwire {

// How long a follower asks its lease to live, unless its options say otherwise; and the limits of the protocol.
inline constexpr std::uint64_t kDefaultLeaseSeconds = 900;
inline constexpr std::uint64_t kMinLeaseSeconds = 60;
inline constexpr std::uint64_t kMaxLeaseSeconds = 86'400;
// Some stores round their times to seconds: what depends on them waits a little longer.
inline constexpr std::chrono::seconds kStoreClockSlack{2};

// gc: between the mark that names what is deleted, and its deletion, for readers that keep no lease.
inline constexpr std::chrono::minutes kGcGrace{15};
// gc keeps what is younger.
inline constexpr std::chrono::hours kGcMinimumAge{24};
// gc keeps this many of the newest anchors that lead to the newest version, and never fewer than the minimum.
inline constexpr std::uint64_t kDefaultKeptAnchors = 3;
inline constexpr std::uint64_t kMinKeptAnchors = 2;

}  // namespace weightwire
