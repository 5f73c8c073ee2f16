// Where a publisher keeps what it needs to go on: the base copy and the spool.
#pragma once

#include <filesystem>
#include <optional>

#include "base/result.h"
#include "log/id.h"

namespace weightwire {

// The one given, or $XDG_STATE_HOME/weightwire/<run>, or ~/.local/state/weightwire/<run>. Made if need be, absolute.
Result<std::filesystem::path> StateDirectory(const std::optional<std::filesystem::path>& given, const Id& run);

}  // namespace weightwire
