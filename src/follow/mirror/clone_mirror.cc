#include "follow/mirror/clone_mirror.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "follow/mirror/mirror_state.h"

namespace weightwire {
namespace {

using Path = FileSystem::Path;

// True for the files in the mirror's own folder that describe the version held.
bool IsCopied(const std::string& name) {
  return name == kStateFile || name == kMirrorFilesFile || name.starts_with("layout.") || name.starts_with("digests.");
}

Status CloneInto(FileSystem& files, const Path& from, const Path& to, int depth) {
  if (depth > kMaxDirectoryDepth) {
    return Error(ErrorCode::kLimit, fmt::format("cannot copy {}: its folders are nested too deep", from.string()));
  }
  const bool is_own = from.filename() == kMirrorFolder;
  WW_TRY(const std::vector<std::string> names, files.List(from));
  for (const std::string& name : names) {
    if (is_own && !IsCopied(name)) continue;
    WW_TRY(const std::optional<FileInfo> info, files.Stat(from / name));
    if (!info.has_value()) continue;
    if (info->kind == FileKind::kDirectory) {
      WW_RETURN_IF_ERROR(files.MakeDirectory(to / name));
      WW_RETURN_IF_ERROR(CloneInto(files, from / name, to / name, depth + 1));
    } else if (info->kind == FileKind::kFile) {
      WW_TRY(const std::unique_ptr<NewFile> copy, files.Clone(from / name, to / name));
      WW_RETURN_IF_ERROR(copy->Sync());
    }
  }
  return files.SyncDirectory(to);
}

}  // namespace

Status CloneMirror(FileSystem& files, const Path& from, const Path& to) { return CloneInto(files, from, to, 0); }

}  // namespace weightwire
