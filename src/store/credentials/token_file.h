// A file that holds one token and is renewed by somebody else.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace weightwire {

// Without line breaks at its end. kRefused if it cannot be opened: a person must act.
Result<std::string> ReadTokenFile(const std::filesystem::path& path);

}  // namespace weightwire
