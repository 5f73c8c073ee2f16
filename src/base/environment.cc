#include "base/environment.h"

#include <cstdlib>

namespace weightwire {

Environment SystemEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): nothing here sets variables
    if (value == nullptr || *value == 0) return std::nullopt;
    return value;
  };
}

}  // namespace weightwire
