// Scripts that complete a program's commands, options and values in a shell.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/description.h"

namespace weightwire {

// `shell` is bash, zsh or fish; kInvalidArgument for another one.
Result<std::string> CompletionScript(const ProgramDescription& program, const std::string& shell);

}  // namespace weightwire
