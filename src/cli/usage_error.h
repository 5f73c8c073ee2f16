// What is wrong with the arguments of a program, as one sentence with a hint.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>

#include "cli/description.h"

namespace weightwire {

// "no command 'pubish'; did you mean 'publish'?", "'weightwire follow' has no option '--poll'; …". `arguments` are
// those of the program, without its name.
[[nodiscard]] std::string UsageErrorSentence(const CLI::App& app, const ProgramDescription& program,
                                             const CLI::ParseError& error, std::span<const char* const> arguments);

}  // namespace weightwire
