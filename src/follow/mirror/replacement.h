// The list of files of a mirror that are replaced by others in .weightwire/incoming. It can be executed again from the
// start, wherever a crash stopped it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "follow/mirror/mirror_state.h"

namespace weightwire {

struct Replacement {
  Held target;                       // what the mirror holds then
  std::vector<std::string> placed;   // names of files in incoming/, which take the place of those in the mirror
  std::vector<std::string> removed;  // names of files in the mirror to delete
  std::vector<std::string> owned;    // names of all files in the mirror then that it has placed itself

  bool operator==(const Replacement&) const = default;
};

[[nodiscard]] std::string ToJson(const Replacement& replacement);
// Every name has passed CheckFileName (log/keys.h).
Result<Replacement> ParseReplacement(std::string_view json);

// Creates the directory and its missing parents, and makes their names durable. The process that made an existing one
// may have been killed before its name was durable: see SyncAncestors.
Status MakeDirectories(FileSystem& files, const FileSystem::Path& directory);
// Makes the names of the directory and of its parents durable.
Status SyncAncestors(FileSystem& files, const FileSystem::Path& directory);

// Creates the parent directories of `name` below `root`. An error if one of them is a link or a file.
Status MakeParents(FileSystem& files, const FileSystem::Path& root, std::string_view name);

// Performs the listed renames and removals, then syncs the directories. A file that is no longer in incoming/ is in its
// place already.
Status ExecuteReplacement(FileSystem& files, const FileSystem::Path& directory, const FileSystem::Path& incoming,
                          const Replacement& replacement);

// Syncs the directories of these names below `root`, and `root`.
Status SyncParents(FileSystem& files, const FileSystem::Path& root, const std::vector<std::string>& names);

inline constexpr std::uint64_t kMaxReplacementBytes = std::uint64_t{64} << 20;

}  // namespace weightwire
