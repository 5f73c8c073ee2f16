// The surface on which this process shows messages of the core: the command or the Python package.
//
// A message of the core often tells the user which option to set, and the surfaces spell options differently. So the
// core asks here how to spell one. The command is the default; the extension module sets the other when it is loaded.
//
// Thread safety: all of it. SetSurface takes effect for messages that are made afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weightwire {

enum class Surface : std::uint8_t { kCommand, kPython };

void SetSurface(Surface surface);
[[nodiscard]] Surface CurrentSurface();

// How a user sets the option `name` (with dashes): "--single-writer", or "single_writer=True".
[[nodiscard]] std::string FlagText(std::string_view name);
// The same for an option with a value: "--state-dir DIR", or "state_dir=DIR".
[[nodiscard]] std::string OptionText(std::string_view name, std::string_view value);

}  // namespace weightwire
