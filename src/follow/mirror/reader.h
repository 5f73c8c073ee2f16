// Reading a mirror while a follower keeps it: a shared lock, and the version before and after.
//
//   WW_TRY(SharedRead read, SharedRead::Begin(files, directory));
//   ... read the checkpoint in the directory ...
//   WW_RETURN_IF_ERROR(read.Confirm());   // what was read is exactly read.held()
//
// The lock keeps the follower from writing meanwhile, so hold it no longer than the reading takes. A program that does
// not know us can do the same: flock(2) .weightwire/content.lock shared, and compare state.json before and after.
#pragma once

#include <memory>
#include <optional>

#include "base/filesystem.h"
#include "base/result.h"
#include "follow/mirror/mirror_state.h"

namespace weightwire {

// Movable. The file system must outlive it.
class SharedRead {
 public:
  // Never waits. kNotFound: no mirror is there. kUnavailable: it is being written, or a crash left it unfinished and a
  // follower has to come first; or it holds no version yet. Try again later.
  static Result<SharedRead> Begin(FileSystem& files, const FileSystem::Path& directory);
  // The same, but nullopt while the mirror is being written: that takes a moment, and a caller may wait for it.
  static Result<std::optional<SharedRead>> TryBegin(FileSystem& files, const FileSystem::Path& directory);

  [[nodiscard]] const Held& held() const { return *state_.held; }

  // An error unless the mirror still holds that version, and has all the while. The lock alone is enough where locks
  // work; not every network file system has them.
  Status Confirm();

 private:
  SharedRead(FileSystem& files, FileSystem::Path directory, std::unique_ptr<FileLock> lock, MirrorState state)
      : files_(&files), directory_(std::move(directory)), lock_(std::move(lock)), state_(std::move(state)) {}

  FileSystem* files_;
  FileSystem::Path directory_;
  std::unique_ptr<FileLock> lock_;
  MirrorState state_;
};

}  // namespace weightwire
