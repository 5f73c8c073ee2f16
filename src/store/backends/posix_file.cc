#include "store/backends/posix_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace weightwire {
namespace {

// One call moves at most 2^31 bytes on Linux.
constexpr std::size_t kMaxTransferBytes = std::size_t{1} << 30;

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

int OpenFile(const std::filesystem::path& path, int flags, Descriptor* out) {
  constexpr mode_t kBeforeUmask = 0666;
  while (true) {
    const int number = ::open(path.c_str(), flags | O_CLOEXEC, kBeforeUmask);
    if (number >= 0) {
      *out = Descriptor(number);
      return 0;
    }
    if (errno != EINTR) return errno;
  }
}

int ReadFully(const Descriptor& file, std::uint64_t offset, std::span<std::uint8_t> bytes, std::size_t* count) {
  *count = 0;
  while (*count < bytes.size()) {
    const std::span<std::uint8_t> rest = bytes.subspan(*count);
    const ssize_t got = ::pread(file.number(), rest.data(), std::min(rest.size(), kMaxTransferBytes),
                                static_cast<off_t>(offset + *count));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) break;
    *count += static_cast<std::size_t>(got);
  }
  return 0;
}

int WriteFully(const Descriptor& file, std::uint64_t offset, std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t put =
        ::pwrite(file.number(), bytes.data(), std::min(bytes.size(), kMaxTransferBytes), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno;
    offset += static_cast<std::uint64_t>(put);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return 0;
}

int Flush(const Descriptor& file) { return ::fsync(file.number()) == 0 ? 0 : errno; }

int FlushDirectory(const std::filesystem::path& directory) {
  Descriptor opened;
  if (const int error = OpenFile(directory.empty() ? "." : directory, O_RDONLY | O_DIRECTORY, &opened); error != 0) {
    return error;
  }
  const int error = Flush(opened);
  return error == EINVAL ? 0 : error;
}

int MakeDirectories(const std::filesystem::path& directory, const std::filesystem::path& floor) {
  constexpr mode_t kBeforeUmask = 0777;
  if (directory.empty()) return 0;
  if (directory == floor) {
    struct stat status {};
    if (::stat(directory.c_str(), &status) != 0) return errno;
    return S_ISDIR(status.st_mode) ? 0 : ENOTDIR;
  }
  // Another process may remove an empty directory between two of our steps.
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (::mkdir(directory.c_str(), kBeforeUmask) == 0) {
      const int error = FlushDirectory(directory.parent_path());
      if (error != ENOENT) return error;
      continue;
    }
    if (errno == EEXIST) {
      struct stat status {};
      if (::stat(directory.c_str(), &status) == 0) return S_ISDIR(status.st_mode) ? 0 : ENOTDIR;
      if (errno != ENOENT) return errno;
      continue;
    }
    if (errno != ENOENT) return errno;
    if (!directory.has_parent_path() || directory.parent_path() == directory) return ENOENT;
    if (const int error = MakeDirectories(directory.parent_path(), floor); error != 0) return error;
  }
  return EBUSY;
}

int StatLink(const std::filesystem::path& path, struct stat* out) {
  return ::lstat(path.c_str(), out) == 0 ? 0 : errno;
}

}  // namespace weightwire
