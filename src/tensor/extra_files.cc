#include "tensor/extra_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/limits.h"

namespace weightwire {
namespace {

namespace fs = std::filesystem;

bool IsOfWeights(std::string_view name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
}

Error IoError(const char* doing, const fs::path& path, const std::error_code& error) {
  return {ErrorCode::kIo, fmt::format("cannot {} {}: {}", doing, path.string(), error.message())};
}

class Copier {
 public:
  Copier(fs::path from, const std::set<std::string>& own) : from_(std::move(from)), own_(own) {}

  Result<std::vector<std::string>> Copy(const fs::path& to) {
    WW_RETURN_IF_ERROR(Copy(from_, to, 0));
    std::sort(left_out_.begin(), left_out_.end());
    return std::move(left_out_);
  }

 private:
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

  Status CopyEntry(const fs::directory_entry& entry, const fs::path& to, int depth) {
    const std::string name = entry.path().filename().string();
    std::string path = entry.path().lexically_relative(from_).string();
    if (name.starts_with(".weightwire") || own_.contains(path)) return Ok();
    if (++entries_ > kMaxExtraFiles) {
      return Error(ErrorCode::kLimit,
                   fmt::format("more than {} files and directories beside the weights", kMaxExtraFiles));
    }
    if (name == ".git" || (depth == 0 && IsOfWeights(name))) return LeaveOut(std::move(path));
    std::error_code error;
    // What cannot be looked at (a dangling link) is neither.
    if (entry.is_directory(error) && !entry.is_symlink(error)) {
      if (!fs::create_directory(to, error)) return IoError("create", to, error);
      return Copy(entry.path(), to, depth + 1);
    }
    if (!entry.is_regular_file(error)) return LeaveOut(std::move(path));
    return CopyFile(entry.path(), to);
  }

  Status LeaveOut(std::string path) {
    left_out_.push_back(std::move(path));
    return Ok();
  }

  const fs::path from_;
  const std::set<std::string>& own_;
  std::uint64_t entries_ = 0;
  std::vector<std::string> left_out_;
};

}  // namespace

Result<std::vector<std::string>> CopyExtraFiles(const fs::path& from, const std::set<std::string>& own,
                                                const fs::path& to) {
  return Copier(from, own).Copy(to);
}

}  // namespace weightwire
