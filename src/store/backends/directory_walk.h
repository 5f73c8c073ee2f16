// Keys of the files below a directory, in the order of their bytes.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace weightwire {

// Calls visit(key) for every regular file below `root` whose path below it is a key that starts with `prefix` and comes
// after `start_after`, in rising order, until visit returns false. Links are not followed. Memory: the names of the
// directories on one path. 0 or an errno; what vanishes meanwhile is no error.
int WalkKeys(const std::filesystem::path& root, std::string_view prefix, std::string_view start_after,
             const std::function<bool(const std::string& key)>& visit);

}  // namespace weightwire
