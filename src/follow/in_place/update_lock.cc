#include "follow/in_place/update_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace weightwire {
namespace {

namespace fs = std::filesystem;

int OpenAndLock(const fs::path& path, int flags, int operation) {
  const int descriptor = ::open(path.empty() ? "." : path.c_str(), flags | O_CLOEXEC);
  if (descriptor < 0) return -1;  // the caller reads it next, and reports why it cannot be opened
  // Continues without a lock on a file system that has none.
  if (::flock(descriptor, operation | LOCK_NB) == 0 || errno != EWOULDBLOCK) return descriptor;
  ::close(descriptor);
  errno = EWOULDBLOCK;
  return -1;
}

}  // namespace

Result<UpdateLock> UpdateLock::Take(const fs::path& checkpoint) {
  UpdateLock lock;
  std::error_code ignored;
  const bool is_directory = fs::is_directory(checkpoint, ignored);
  const Error busy(ErrorCode::kIo, fmt::format("another weightwire is updating {} at this moment; try again later",
                                               checkpoint.string()));
  errno = 0;
  lock.directory_ = OpenAndLock(is_directory ? checkpoint : checkpoint.parent_path(), O_RDONLY | O_DIRECTORY,
                                is_directory ? LOCK_EX : LOCK_SH);
  if (lock.directory_ < 0 && errno == EWOULDBLOCK) return busy;
  if (!is_directory) {
    errno = 0;
    lock.file_ = OpenAndLock(checkpoint, O_RDONLY, LOCK_EX);
    if (lock.file_ < 0 && errno == EWOULDBLOCK) return busy;
  }
  return lock;
}

UpdateLock::UpdateLock(UpdateLock&& other) noexcept
    : directory_(std::exchange(other.directory_, -1)), file_(std::exchange(other.file_, -1)) {}

UpdateLock::~UpdateLock() {
  if (file_ >= 0) ::close(file_);
  if (directory_ >= 0) ::close(directory_);
}

}  // namespace weightwire
