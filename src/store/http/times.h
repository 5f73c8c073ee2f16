// Points in time as services write them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace weightwire {

// "2026-11-15T08:45:01.123Z", with or without the fraction. Nothing when it is none.
std::optional<WallTime> ParseIsoTime(std::string_view text);

// "Sun, 15 Nov 2026 08:45:01 GMT", as in HTTP headers.
std::optional<WallTime> ParseHttpTime(std::string_view text);

// "2026-11-15 08:45:01 UTC", for people.
std::string FormatTime(WallTime time);

}  // namespace weightwire
