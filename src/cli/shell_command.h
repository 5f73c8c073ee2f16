// Runs a command line of the user by the shell.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/result.h"
#include "cli/interrupt.h"

namespace weightwire {

// Runs it with these variables in its environment and waits for its end. `meanwhile` is called about every ten seconds.
// A signal to us is passed on to it. kIo if it ends with another status than 0.
Status RunShellCommand(const std::string& command, const std::map<std::string, std::string>& variables,
                       const InterruptGuard& interrupt, const std::function<void()>& meanwhile);

}  // namespace weightwire
