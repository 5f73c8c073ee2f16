// The timeouts of src/base. base/failure_policy.h maps errors to reactions; base/limits.h limits what is read from
// outside. ARCHITECTURE.md, "Timeouts, retries and limits", lists the values; ./dev lint compares the two.
#pragma once

#include <chrono>

namespace weightwire {

// RunProcess kills a program that runs longer.
inline constexpr std::chrono::minutes kProcessTimeout{1};

// Pauses of a BackoffPolicy whose owner chooses none: the first, the last, and after an error that is not transient.
inline constexpr std::chrono::seconds kDefaultFirstPause{1};
inline constexpr std::chrono::seconds kDefaultLastPause{60};
inline constexpr std::chrono::seconds kDefaultSlowPause{300};

}  // namespace weightwire
