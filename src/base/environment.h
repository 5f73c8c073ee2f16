// The variables of the environment, injected, so that tests set them without changing the process.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace weightwire {

// The value of a variable; nothing when it is not set or empty.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// This process's own.
Environment SystemEnvironment();

}  // namespace weightwire
