// The timeouts, retries and size thresholds of src/store. ARCHITECTURE.md, "Timeouts, retries and limits", lists them
// with those of the other folders.
#pragma once

#include <chrono>
#include <cstdint>

namespace weightwire {

// RetryStore: pauses between the attempts at one call, and how long it tries at all. A caller that waits longer tries
// the call again by its own policy.
inline constexpr std::chrono::milliseconds kFirstRetryPause{200};
inline constexpr std::chrono::seconds kLastRetryPause{20};
inline constexpr std::chrono::seconds kRetryDeadline{30};

}  // namespace weightwire
