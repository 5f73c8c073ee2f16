// Durations and sizes as people write and read them: in options, in arguments and in variables of the environment.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace weightwire {

// Parses "500ms", "0.5s", "15m", "24h", "7d": a number of ms, s, m, h or d that is a whole number of milliseconds. A
// bare number means seconds. kInvalidArgument for anything else.
Result<std::chrono::milliseconds> ParseDuration(const std::string& text);

// Parses "512", "64KiB", "256MiB", "1.5GB": a number of bytes (or B), of KiB, MiB, GiB, TiB (powers of 1024), or of KB
// (or kB), MB, GB, TB (powers of 1000), that is a whole number of bytes. kInvalidArgument for anything else.
Result<std::uint64_t> ParseSize(const std::string& text);

// Parses 1/0/true/false/yes/no/on/off, in lower or upper case. kInvalidArgument for anything else.
Result<bool> ParseFlag(const std::string& text);

// "0 s", "42 s", "15 min", "3 h 20 min", "4 d 2 h": the two units that matter.
[[nodiscard]] std::string HumanDuration(std::chrono::seconds duration);

}  // namespace weightwire
