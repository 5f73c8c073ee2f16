// The exit statuses of the programs: 0, or the number of the error's code (base/error.h).
#pragma once

#include "base/error.h"

namespace weightwire {

[[nodiscard]] constexpr int ExitStatusOf(ErrorCode code) { return static_cast<int>(code); }

// For --help.
inline constexpr const char* kExitStatusHelp =
    "Exit status: 0; 2 wrong arguments; 3 not found; 4 refused by the system; 5 damaged bytes; 6 another base, layout\n"
    "or state; 7 not supported; 8 beyond a limit; 9 a write whose answer was lost; 10 refused by the store; 11 not "
    "now, try\n"
    "again.";

}  // namespace weightwire
