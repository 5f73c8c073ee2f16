// The intervals and retries of src/runner. ARCHITECTURE.md, "Timeouts, retries and limits", lists them with those of
// the other folders; ./dev lint compares the two.
#pragma once

#include <chrono>

namespace weightwire {

// How often a follower looks for a newer version, and a command for a run that does not exist yet. The command's
// --poll, and poll_seconds in Python, change it.
inline constexpr std::chrono::seconds kPollInterval{2};

}  // namespace weightwire
