#include "follow/mirror/replacement.h"

#include <fmt/format.h>

#include <set>

#include "log/limits.h"

namespace weightwire {
namespace {

constexpr std::string_view kReplacementFormat = "weightwire-replacement";

}  // namespace

std::string ToJson(const Replacement& replacement) {
  FieldsWriter out;
  out.Text("format", kReplacementFormat);
  WriteHeld(out, replacement.target);
  out.Texts("placed", replacement.placed).Texts("removed", replacement.removed).Texts("owned", replacement.owned);
  return out.Finish() + "\n";
}

Result<Replacement> ParseReplacement(std::string_view json) {
  WW_TRY(const JsonValue object, ParseFields(json, kMaxReplacementBytes, kReplacementFormat));
  Replacement replacement;
  WW_TRY(replacement.target, ReadHeld(object));
  WW_TRY(replacement.placed, object.Texts("placed", kMaxAnchorFiles));
  WW_TRY(replacement.removed, object.Texts("removed", kMaxAnchorFiles));
  WW_TRY(replacement.owned, object.Texts("owned", kMaxAnchorFiles));
  for (const auto* names : {&replacement.placed, &replacement.removed, &replacement.owned}) {
    for (const std::string& name : *names) WW_RETURN_IF_ERROR(CheckFileName(name));
  }
  return replacement;
}

Status MakeDirectories(FileSystem& files, const FileSystem::Path& directory) {
  WW_TRY(const std::optional<FileInfo> info, files.Stat(directory));
  if (info.has_value()) return Ok();
  const FileSystem::Path parent = directory.parent_path();
  if (!parent.empty() && parent != directory) WW_RETURN_IF_ERROR(MakeDirectories(files, parent));
  WW_RETURN_IF_ERROR(files.MakeDirectory(directory));
  return files.SyncDirectory(parent);
}

Status SyncAncestors(FileSystem& files, const FileSystem::Path& directory) {
  for (FileSystem::Path child = directory; child.has_relative_path(); child = child.parent_path()) {
    const FileSystem::Path parent = child.parent_path();
    // A directory that this process may not list was not made by weightwire; nor were its parents.
    if (!files.List(parent.empty() ? FileSystem::Path(".") : parent).ok()) break;
    WW_RETURN_IF_ERROR(files.SyncDirectory(parent));
  }
  return Ok();
}

Status MakeParents(FileSystem& files, const FileSystem::Path& root, std::string_view name) {
  FileSystem::Path at = root;
  for (const FileSystem::Path& part : FileSystem::Path(name).parent_path()) {
    at /= part;
    WW_TRY(const std::optional<FileInfo> info, files.Stat(at));
    if (!info.has_value()) {
      WW_RETURN_IF_ERROR(files.MakeDirectory(at));
    } else if (info->kind != FileKind::kDirectory) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("cannot write {}: {} is not a directory", (root / name).string(), at.string()));
    }
  }
  return Ok();
}

Status SyncParents(FileSystem& files, const FileSystem::Path& root, const std::vector<std::string>& names) {
  std::set<FileSystem::Path> directories = {root};
  for (const std::string& name : names) {
    for (FileSystem::Path parent = FileSystem::Path(name).parent_path(); !parent.empty();
         parent = parent.parent_path()) {
      directories.insert(root / parent);
    }
  }
  for (const FileSystem::Path& directory : directories) {
    WW_TRY(const std::optional<FileInfo> info, files.Stat(directory));
    if (info.has_value()) WW_RETURN_IF_ERROR(files.SyncDirectory(directory));
  }
  return Ok();
}

Status ExecuteReplacement(FileSystem& files, const FileSystem::Path& directory, const FileSystem::Path& incoming,
                          const Replacement& replacement) {
  for (const std::string& name : replacement.placed) {
    WW_TRY(const std::optional<FileInfo> waiting, files.Stat(incoming / name));
    if (!waiting.has_value()) continue;
    WW_RETURN_IF_ERROR(MakeParents(files, directory, name));
    WW_RETURN_IF_ERROR(files.Rename(incoming / name, directory / name));
  }
  for (const std::string& name : replacement.removed) {
    WW_TRY(const std::optional<FileInfo> there, files.Stat(directory / name));
    if (there.has_value() && there->kind != FileKind::kDirectory) {
      WW_RETURN_IF_ERROR(files.Remove(directory / name));
    }
  }
  WW_RETURN_IF_ERROR(SyncParents(files, directory, replacement.placed));
  return SyncParents(files, directory, replacement.removed);
}

}  // namespace weightwire
