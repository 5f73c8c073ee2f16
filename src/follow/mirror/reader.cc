#include "follow/mirror/reader.h"

#include <fmt/format.h>

#include <utility>

namespace weightwire {

Result<SharedRead> SharedRead::Begin(FileSystem& files, const FileSystem::Path& directory) {
  WW_TRY(auto read, TryBegin(files, directory));
  if (read.has_value()) return *std::move(read);
  return Error(ErrorCode::kUnavailable,
               fmt::format("{} is being written at this moment; try again", directory.string()));
}

Result<std::optional<SharedRead>> SharedRead::TryBegin(FileSystem& files, const FileSystem::Path& directory) {
  auto lock = files.Lock(directory / kMirrorFolder / kContentLock, LockMode::kShared);
  if (!lock.ok()) {
    if (lock.error().code() == ErrorCode::kUnavailable) return std::optional<SharedRead>();
    if (lock.error().code() == ErrorCode::kNotFound) {
      return Error(ErrorCode::kNotFound,
                   fmt::format("{} is not a mirror; make one with 'weightwire follow'", directory.string()));
    }
    return lock.error();
  }
  auto state = ReadMirrorState(files, directory);
  if (!state.ok() && state.error().code() != ErrorCode::kNotFound) return state.error();
  if (!state.ok() || (!state.value().held.has_value() && !state.value().writing.has_value())) {
    return Error(ErrorCode::kUnavailable, fmt::format("{} holds no version yet", directory.string()));
  }
  if (!state.value().IsReadable(files.BootId())) {
    return Error(ErrorCode::kUnavailable,
                 fmt::format("an update of {} was cut off; run 'weightwire follow' on it, which finishes it",
                             directory.string()));
  }
  return std::optional(SharedRead(files, directory, std::move(lock).value(), std::move(state).value()));
}

Status SharedRead::Confirm() {
  WW_TRY(const MirrorState now, ReadMirrorState(*files_, directory_));
  // Weights that have reached the disk meanwhile are the same weights.
  if (now.held == state_.held && now.IsReadable(files_->BootId())) return Ok();
  return Error(ErrorCode::kUnavailable,
               fmt::format("{} was changed while it was read; read it again", directory_.string()));
}

}  // namespace weightwire
