// The command line: arguments to options, errors to one sentence and an exit status.
#pragma once

#include "cli/world.h"

namespace weightwire {

inline constexpr const char* kVersion = "0.1.0";  // of CMakeLists.txt

// What main does. Returns the exit status: 0, or the number of the error's code (base/error.h).
int RunCommand(int argc, const char* const* argv, const World& world);

}  // namespace weightwire
