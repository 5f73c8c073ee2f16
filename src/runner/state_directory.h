// Where a publisher keeps what it needs to go on: the base copy and the spool.
#pragma once

#include <filesystem>
#include <optional>

#include "base/result.h"
#include "log/id.h"

namespace weightwire {

// The one given, or $XDG_STATE_HOME/weightwire/<run>, or ~/.local/state/weightwire/<run>. Absolute; may not exist.
Result<std::filesystem::path> StateDirectoryPath(const std::optional<std::filesystem::path>& given, const Id& run);

// The same, and creates it.
Result<std::filesystem::path> StateDirectory(const std::optional<std::filesystem::path>& given, const Id& run);

}  // namespace weightwire
