#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <random>
#include <system_error>
#include <utility>

namespace weightwire {
namespace {

// One call moves at most 2^31 bytes on Linux; staying well below keeps the loop the ordinary case.
constexpr std::size_t kMaxTransferBytes = std::size_t{1} << 30;

Error NameTaken(const std::filesystem::path& path) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("{} already exists; remove it or choose another name", path.string())};
}

int OpenRetrying(const std::filesystem::path& path, int flags) {
  constexpr mode_t kBeforeUmask = 0666;
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, kBeforeUmask);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

}  // namespace

Error SystemError(const char* doing, const std::filesystem::path& path, int error) {
  const ErrorCode code = error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
  return {code, fmt::format("cannot {} {}: {}", doing, path.string(), std::generic_category().message(error))};
}

Result<File> File::OpenForRead(const std::filesystem::path& path) {
  // A pipe without a writer would be waited for; whoever reads the file finds that it is none. Of no effect otherwise.
  const int descriptor = OpenRetrying(path, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) return SystemError("open", path, errno);
  return File(descriptor, path);
}

Result<File> File::OpenForUpdate(const std::filesystem::path& path, Links links) {
  const int descriptor = OpenRetrying(path, O_RDWR | (links == Links::kRefuse ? O_NOFOLLOW : 0));
  if (descriptor < 0 && errno == ELOOP && links == Links::kRefuse) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("cannot change {}: it is a link, and others may use what it points to", path.string()));
  }
  if (descriptor < 0) return SystemError("open for writing", path, errno);
  return File(descriptor, path);
}

Result<File> File::Create(const std::filesystem::path& path) {
  const int descriptor = OpenRetrying(path, O_RDWR | O_CREAT | O_EXCL);
  if (descriptor < 0 && errno == EEXIST) return NameTaken(path);
  if (descriptor < 0) return SystemError("create", path, errno);
  return File(descriptor, path);
}

File::File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<std::uint64_t> File::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return SystemError("read the size of", path_, errno);
  return static_cast<std::uint64_t>(status.st_size);
}

Status File::ReadAt(std::uint64_t offset, std::span<std::uint8_t> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pread(descriptor_, bytes.data(), std::min(bytes.size(), kMaxTransferBytes), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("read", path_, errno);
    if (count == 0) {
      return Error(ErrorCode::kCorrupt, fmt::format("cannot read {}: it ends at byte {}, {} bytes too early",
                                                    path_.string(), offset, bytes.size()));
    }
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return Ok();
}

Status File::WriteAt(std::uint64_t offset, std::span<const std::uint8_t> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(descriptor_, bytes.data(), std::min(bytes.size(), kMaxTransferBytes), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("write", path_, errno);
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return Ok();
}

Status File::Resize(std::uint64_t size_bytes) const {
  int result = 0;
  do {
    result = ::ftruncate(descriptor_, static_cast<off_t>(size_bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) return SystemError("set the size of", path_, errno);
  return Ok();
}

void File::BeginSync(std::uint64_t offset, std::uint64_t size_bytes) const {
  (void)::sync_file_range(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(size_bytes),
                          SYNC_FILE_RANGE_WRITE);
}

Status File::Sync() const {
  if (::fsync(descriptor_) != 0) return SystemError("flush to disk", path_, errno);
  return Ok();
}

Status SyncDirectory(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory.empty() ? "." : directory;
  const int descriptor = OpenRetrying(path, O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) return SystemError("open", path, errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some network file systems cannot flush a directory, and have nothing to flush.
  if (error != 0 && error != EINVAL) return SystemError("flush to disk", path, error);
  return Ok();
}

Status Rename(const std::filesystem::path& from, const std::filesystem::path& to, Existing existing) {
  int error = 0;
  if (existing == Existing::kRefuse) {
    error = ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0 ? 0 : errno;
    if (error == EEXIST) return NameTaken(to);
    if (error == EINVAL || error == ENOSYS) {
      // A file system without exclusive rename. Looking first leaves a gap in which another could take the name; there
      // it is the best there is.
      std::error_code ignored;
      if (std::filesystem::symlink_status(to, ignored).type() != std::filesystem::file_type::not_found) {
        return NameTaken(to);
      }
      existing = Existing::kReplace;
    }
  }
  if (existing == Existing::kReplace) error = std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  if (error != 0) return SystemError("write", to, error);
  return SyncDirectory(to.parent_path());
}

std::filesystem::path TemporarySibling(const std::filesystem::path& path) {
  std::random_device random;
  const std::uint64_t high = random();
  return path.parent_path() / fmt::format(".weightwire-{:016x}.tmp", high << 32 | random());
}

Result<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  WW_TRY(const File file, File::OpenForRead(path));
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) return SystemError("read the size of", path, errno);
  // A directory or a pipe opens, but has no bytes to map.
  if (!S_ISREG(status.st_mode)) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("cannot read {}: it is not a regular file", path.string()));
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return MappedFile(nullptr, 0, path);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (data == MAP_FAILED) return SystemError("map", path, errno);
  return MappedFile(static_cast<const std::uint8_t*>(data), size, path);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::uint8_t*>(data_), size_);
}

Status CopyFile(const std::filesystem::path& from, const std::filesystem::path& to) {
  WW_TRY(const MappedFile source, MappedFile::Open(from));
  WW_TRY(const File copy, File::Create(to));
  WW_RETURN_IF_ERROR(copy.WriteAt(0, source.bytes()));
  return copy.Sync();
}

Result<AtomicFile> AtomicFile::Create(const std::filesystem::path& path, Existing existing) {
  std::error_code ignored;
  if (existing == Existing::kRefuse &&
      std::filesystem::symlink_status(path, ignored).type() != std::filesystem::file_type::not_found) {
    return NameTaken(path);
  }
  auto file = File::Create(TemporarySibling(path));
  if (!file.ok()) return file.error().In("cannot write " + path.string());
  return AtomicFile(std::move(file).value(), path, existing);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : file_(std::move(other.file_)),
      path_(std::move(other.path_)),
      existing_(other.existing_),
      size_(other.size_),
      pending_(std::exchange(other.pending_, false)) {}

AtomicFile::~AtomicFile() {
  if (pending_) ::unlink(file_.path().c_str());
}

Status AtomicFile::Append(std::span<const std::uint8_t> bytes) {
  WW_RETURN_IF_ERROR(file_.WriteAt(size_, bytes));
  size_ += bytes.size();
  return Ok();
}

Status AtomicFile::Commit() {
  WW_CHECK(pending_);
  WW_RETURN_IF_ERROR(file_.Sync());
  WW_RETURN_IF_ERROR(Rename(file_.path(), path_, existing_));
  pending_ = false;
  return Ok();
}

}  // namespace weightwire
