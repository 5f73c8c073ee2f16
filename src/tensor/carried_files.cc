#include "tensor/carried_files.h"

#include <fmt/format.h>

#include <string_view>
#include <system_error>

#include "base/file.h"
#include "base/limits.h"

namespace weightwire {
namespace {

namespace fs = std::filesystem;

bool IsLeftOut(std::string_view name) {
  return name == ".git" || name.starts_with(".weightwire") || name.ends_with(".safetensors") ||
         name.ends_with(".safetensors.index.json");
}

Error IoError(const char* doing, const fs::path& path, const std::error_code& error) {
  return {ErrorCode::kIo, fmt::format("cannot {} {}: {}", doing, path.string(), error.message())};
}

class Copier {
 public:
  Status Copy(const fs::path& from, const fs::path& to, int depth) {
    if (depth > kMaxDirectoryDepth) {
      return Error(ErrorCode::kLimit,
                   fmt::format("{} is nested more than {} directories deep", from.string(), kMaxDirectoryDepth));
    }
    std::error_code error;
    fs::directory_iterator entries(from, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
      WW_RETURN_IF_ERROR(CopyEntry(*entries, to / entries->path().filename(), depth));
    }
    if (error) return IoError("list", from, error);
    return SyncDirectory(to);
  }

 private:
  Status CopyEntry(const fs::directory_entry& entry, const fs::path& to, int depth) {
    if (IsLeftOut(entry.path().filename().string())) return Ok();
    std::error_code error;
    // What cannot be looked at (a dangling link) is neither, and is passed over.
    if (entry.is_directory(error) && !entry.is_symlink(error)) {
      if (!fs::create_directory(to, error)) return IoError("create", to, error);
      return Copy(entry.path(), to, depth + 1);
    }
    if (!entry.is_regular_file(error)) return Ok();
    if (++files_ > kMaxCarriedFiles) {
      return Error(ErrorCode::kLimit, fmt::format("more than {} files beside the weights", kMaxCarriedFiles));
    }
    return CopyFile(entry.path(), to);
  }

  std::uint64_t files_ = 0;
};

}  // namespace

Status CopyCarriedFiles(const fs::path& from, const fs::path& to) { return Copier().Copy(from, to, 0); }

}  // namespace weightwire
