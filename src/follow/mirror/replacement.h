// Replacing files of a mirror by others that lie ready in .weightwire/incoming: a list that can be worked off again
// from the start, wherever a crash stopped it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "follow/mirror/mirror_state.h"

namespace weightwire {

struct Replacement {
  Held held;                         // what the mirror holds then
  std::vector<std::string> placed;   // names of files in incoming/, which take the place of those in the mirror
  std::vector<std::string> removed;  // names of files in the mirror that go
  std::vector<std::string> owned;    // names of all files that are there then because of us

  bool operator==(const Replacement&) const = default;
};

[[nodiscard]] std::string ToJson(const Replacement& replacement);
// Every name has passed CheckFileName (log/keys.h).
Result<Replacement> ParseReplacement(std::string_view json);

// Makes the directory and those on the way to it, and brings their names to the disk. One that is there already may
// have been made by somebody who was killed before that: see SyncAncestors.
Status MakeDirectories(FileSystem& files, const FileSystem::Path& directory);
// Brings the names on the way to the directory to the disk.
Status SyncAncestors(FileSystem& files, const FileSystem::Path& directory);

// Makes the directories on the way to `name` below `root`. An error when one of them is a link or a file.
Status MakeParents(FileSystem& files, const FileSystem::Path& root, std::string_view name);

// Makes what the list says so, and returns once that is on the disk. A file that is not in incoming/ any more is in its
// place already.
Status ExecuteReplacement(FileSystem& files, const FileSystem::Path& directory, const FileSystem::Path& incoming,
                          const Replacement& replacement);

// Syncs the directories of these names below `root`, and `root`.
Status SyncParents(FileSystem& files, const FileSystem::Path& root, const std::vector<std::string>& names);

inline constexpr std::uint64_t kMaxReplacementBytes = std::uint64_t{64} << 20;

}  // namespace weightwire
