// The times, counts and sizes by which followers work. ARCHITECTURE.md, "Timeouts, retries and limits", lists them with
// those of the other folders; ./dev lint compares the two. The lifetime of a lease is in log/policy.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace weightwire {

// A lease is renewed after this share of its lifetime.
inline constexpr int kRenewalsPerLease = 3;
// After a transient error, a renewal is tried again after this share.
inline constexpr int kLeaseTriesPerLifetime = 30;
// A lease that names an older version than the target holds is renewed at this age, because `weightwire followers`
// shows the operator how far a follower is.
inline constexpr std::chrono::seconds kLeaseNewsAfter{15};

// A follower stages versions ahead while their deltas have no more bytes than this. It always stages one.
inline constexpr std::uint64_t kMaxStagedAheadBytes = std::uint64_t{1} << 30;
// A damaged object is fetched this often before the follower takes another path.
inline constexpr int kFetchAttempts = 3;
// Small parts are fetched together: this many for each thread, up to this many bytes.
inline constexpr std::size_t kSmallPartsPerThread = 4;
inline constexpr std::uint64_t kMaxSmallPartBytes = std::uint64_t{32} << 20;
// A rebuild ends after this many transient errors. It does not pause between them, because it has no sleeper, and
// because the store has already retried each request for its whole patience (store/wrappers/retry_store.h).
inline constexpr int kRebuildAttempts = 10;

}  // namespace weightwire
