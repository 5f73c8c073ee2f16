// The intervals and retries of src/runner. ARCHITECTURE.md, "Timeouts, retries and limits", lists them with those of
// the other folders; ./dev lint compares the two.
#pragma once

#include <chrono>
#include <cstddef>

namespace weightwire {

// How often a follower looks for a newer version, and a command for a run that does not exist yet. The setting
// poll-interval changes it. 300 requests in 5 minutes, because Hugging Face allows 1,000.
inline constexpr std::chrono::seconds kPollInterval{1};

// The pauses of a follower's loop after errors: the first, the last of those that double, and the one after an error
// that is not transient.
inline constexpr std::chrono::milliseconds kFirstFollowPause{250};
inline constexpr std::chrono::seconds kLastFollowPause{30};
inline constexpr std::chrono::seconds kSlowFollowPause{60};
// A command gives up once the store could not be reached for this long. The setting retry-for changes it.
inline constexpr std::chrono::minutes kRetryFor{10};

// Records of versions are read this many at a time, because reading one mostly waits for the store.
inline constexpr std::size_t kRecordThreads = 16;

// How often a call from Python that waits looks whether the user wants to interrupt it.
inline constexpr std::chrono::milliseconds kInterruptCheckInterval{50};

}  // namespace weightwire
