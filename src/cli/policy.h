// The timeouts, intervals and retries of src/cli. ARCHITECTURE.md, "Timeouts, retries and limits", lists them with
// those of the other folders.
#pragma once

#include <chrono>

namespace weightwire {

// RetryTransient: attempts in a row at one step, and the pauses between them.
inline constexpr int kRetryAttempts = 6;
inline constexpr std::chrono::milliseconds kFirstRetryWait{500};
inline constexpr std::chrono::seconds kLastRetryWait{8};

}  // namespace weightwire
