#include "base/filesystem.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/limits.h"

namespace weightwire {
namespace {

Status RemoveTreeAt(FileSystem& files, const FileSystem::Path& path, int depth) {
  WW_TRY(const std::optional<FileInfo> info, files.Stat(path));
  if (!info.has_value()) return Ok();
  if (info->kind != FileKind::kDirectory) return files.Remove(path);
  if (depth > kMaxDirectoryDepth) {
    return Error(ErrorCode::kLimit, fmt::format("cannot remove {}: it is nested more than {} directories deep",
                                                path.string(), kMaxDirectoryDepth));
  }
  WW_TRY(const std::vector<std::string> names, files.List(path));
  for (const std::string& name : names) WW_RETURN_IF_ERROR(RemoveTreeAt(files, path / name, depth + 1));
  return files.RemoveDirectory(path);
}

}  // namespace

Status WriteDurably(FileSystem& files, const FileSystem::Path& path, std::span<const std::uint8_t> bytes) {
  const FileSystem::Path temporary = path.string() + ".tmp";
  WW_TRY(const std::optional<FileInfo> left, files.Stat(temporary));
  if (left.has_value()) WW_RETURN_IF_ERROR(files.Remove(temporary));
  {
    WW_TRY(const std::unique_ptr<NewFile> file, files.Create(temporary));
    WW_RETURN_IF_ERROR(file->Append(bytes));
    WW_RETURN_IF_ERROR(file->Sync());
  }
  WW_RETURN_IF_ERROR(files.Rename(temporary, path));
  return files.SyncDirectory(path.parent_path());
}

Status WriteDurably(FileSystem& files, const FileSystem::Path& path, std::string_view text) {
  return WriteDurably(files, path, BytesOf(text));
}

Result<bool> IsDirectory(FileSystem& files, const FileSystem::Path& path) {
  WW_TRY(const std::optional<FileInfo> there, files.Stat(path));
  if (!there.has_value()) return false;
  return there->kind == FileKind::kDirectory || (there->kind == FileKind::kLink && files.List(path).ok());
}

Status RemoveTree(FileSystem& files, const FileSystem::Path& path) { return RemoveTreeAt(files, path, 0); }

}  // namespace weightwire
