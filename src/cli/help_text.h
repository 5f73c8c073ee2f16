// The help of a program and of its commands, as text that is wrapped to the width of the terminal.
#pragma once

#include <cstddef>
#include <string>

#include "cli/description.h"

namespace weightwire {

[[nodiscard]] std::string HelpText(const ProgramDescription& program, std::size_t width);
[[nodiscard]] std::string HelpText(const ProgramDescription& program, const CommandDescription& command,
                                   std::size_t width);

// Columns of the terminal on standard output; 100 without one, and at most 120.
[[nodiscard]] std::size_t HelpWidth();

// Wraps paragraphs. A line that begins with a space stays unchanged, and so do the breaks around it.
[[nodiscard]] std::string WrapParagraphs(const std::string& text, std::size_t width);

}  // namespace weightwire
