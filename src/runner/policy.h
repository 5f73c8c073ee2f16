// The intervals and retries of src/runner. ARCHITECTURE.md, "Timeouts, retries and limits", lists them with those of
// the other folders; ./dev lint compares the two.
#pragma once

#include <chrono>

namespace weightwire {

// How often a follower, and a command that waits for a run, asks for a newer version. The command's --poll, and
// poll_seconds in Python, change it.
inline constexpr std::chrono::seconds kPollInterval{2};

}  // namespace weightwire
