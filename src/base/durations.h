// Durations as people write and read them.
#pragma once

#include <chrono>
#include <string>

#include "base/result.h"

namespace weightwire {

// "500ms", "0.5s", "15m", "24h", "7d": a number of ms, s, m, h or d that is a whole number of milliseconds. "0" needs
// no unit. kInvalidArgument for anything else.
Result<std::chrono::milliseconds> ParseDuration(const std::string& text);

// "0 s", "42 s", "15 min", "3 h 20 min", "4 d 2 h": the two units that matter.
[[nodiscard]] std::string HumanDuration(std::chrono::seconds duration);

}  // namespace weightwire
