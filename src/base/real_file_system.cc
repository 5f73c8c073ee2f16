#include "base/real_file_system.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/limits.h"

namespace weightwire {
namespace {

using Path = FileSystem::Path;

class RealMap final : public FileMap {
 public:
  explicit RealMap(MappedFile map) : map_(std::move(map)) {}
  [[nodiscard]] std::span<const std::uint8_t> bytes() const override { return map_.bytes(); }

 private:
  MappedFile map_;
};

class RealUpdateMap final : public UpdateMap {
 public:
  RealUpdateMap(File file, std::uint8_t* data, std::uint64_t size) : file_(std::move(file)), data_(data), size_(size) {}
  ~RealUpdateMap() override {
    if (data_ != nullptr) ::munmap(data_, size_);
  }

  [[nodiscard]] std::uint64_t size_bytes() const override { return size_; }
  Result<std::span<std::uint8_t>> ForWriting(std::uint64_t offset, std::uint64_t size) override {
    WW_CHECK(offset <= size_ && size <= size_ - offset);
    return std::span<std::uint8_t>(data_ + offset, size);
  }
  // Pages of a shared map are pages of the file, so the file's own sync covers them.
  Status Sync() override { return file_.Sync(); }

 private:
  File file_;
  std::uint8_t* data_;
  std::uint64_t size_;
};

class RealNewFile final : public NewFile {
 public:
  explicit RealNewFile(File file) : file_(std::move(file)) {}

  Status Append(std::span<const std::uint8_t> bytes) override {
    WW_RETURN_IF_ERROR(file_.WriteAt(end_, bytes));
    end_ += bytes.size();
    // The disk begins with what is there, so that a sync at the end does not have to wait for all of it.
    if (end_ - begun_ >= kWriteBehindBytes) {
      file_.BeginSync(begun_, end_ - begun_);
      begun_ = end_;
    }
    return Ok();
  }
  Status WriteAt(std::uint64_t offset, std::span<const std::uint8_t> bytes) override {
    return file_.WriteAt(offset, bytes);
  }
  Status Resize(std::uint64_t size_bytes) override { return file_.Resize(size_bytes); }
  Status Sync() override { return file_.Sync(); }

 private:
  static constexpr std::uint64_t kWriteBehindBytes = std::uint64_t{8} << 20;

  File file_;
  std::uint64_t end_ = 0;
  std::uint64_t begun_ = 0;  // the disk was told of what is before this
};

class RealLock final : public FileLock {
 public:
  explicit RealLock(int descriptor) : descriptor_(descriptor) {}
  ~RealLock() override { ::close(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace

Result<std::optional<FileInfo>> RealFileSystem::Stat(const Path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<FileInfo>();
    return SystemError("look at", path, errno);
  }
  FileInfo info;
  if (S_ISREG(status.st_mode)) {
    info = {FileKind::kFile, static_cast<std::uint64_t>(status.st_size), status.st_nlink};
  } else if (S_ISDIR(status.st_mode)) {
    info.kind = FileKind::kDirectory;
  } else if (S_ISLNK(status.st_mode)) {
    info.kind = FileKind::kLink;
  }
  return std::optional(info);
}

Result<std::vector<std::uint8_t>> RealFileSystem::Read(const Path& path, std::uint64_t max_bytes) {
  WW_TRY(const File file, File::OpenForRead(path));
  WW_TRY(const std::uint64_t size, file.size());
  if (size > max_bytes) {
    return Error(ErrorCode::kLimit,
                 fmt::format("cannot read {}: its {} bytes are above the limit of {}", path.string(), size, max_bytes));
  }
  std::vector<std::uint8_t> bytes(size);
  WW_RETURN_IF_ERROR(file.ReadAt(0, bytes));
  return bytes;
}

Result<std::vector<std::string>> RealFileSystem::List(const Path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (names.size() == kMaxDirectoryEntries) {
      return Error(ErrorCode::kLimit,
                   fmt::format("cannot list {}: it has more than {} names", directory.string(), kMaxDirectoryEntries));
    }
    names.push_back(entry->path().filename().string());
  }
  if (error) return SystemError("list", directory, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::unique_ptr<FileMap>> RealFileSystem::Map(const Path& path) {
  WW_TRY(MappedFile map, MappedFile::Open(path));
  return std::unique_ptr<FileMap>(std::make_unique<RealMap>(std::move(map)));
}

Result<std::string> RealFileSystem::ReadLink(const Path& path) {
  std::array<char, PATH_MAX> target;
  const ssize_t size = ::readlink(path.c_str(), target.data(), target.size());
  if (size < 0) return SystemError("read the link", path, errno);
  return std::string(target.data(), static_cast<std::size_t>(size));
}

std::string RealFileSystem::BootId() {
  // 36 characters and a line feed. Files of /proc have no size, so Read() is of no use.
  constexpr std::size_t kIdBytes = 36;
  const auto file = File::OpenForRead("/proc/sys/kernel/random/boot_id");
  std::string id(kIdBytes, '\0');
  if (!file.ok() || !file.value().ReadAt(0, {reinterpret_cast<std::uint8_t*>(id.data()), id.size()}).ok()) return "";
  return id;
}

Result<std::unique_ptr<UpdateMap>> RealFileSystem::MapForUpdate(const Path& path) {
  WW_TRY(File file, File::OpenForUpdate(path, Links::kRefuse));
  WW_TRY(const std::uint64_t size, file.size());
  if (size == 0) return std::unique_ptr<UpdateMap>(std::make_unique<RealUpdateMap>(std::move(file), nullptr, 0));
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor(), 0);
  if (data == MAP_FAILED) return SystemError("map", path, errno);
  return std::unique_ptr<UpdateMap>(
      std::make_unique<RealUpdateMap>(std::move(file), static_cast<std::uint8_t*>(data), size));
}

Result<std::unique_ptr<NewFile>> RealFileSystem::Create(const Path& path) {
  WW_TRY(File file, File::Create(path));
  return std::unique_ptr<NewFile>(std::make_unique<RealNewFile>(std::move(file)));
}

Result<std::unique_ptr<NewFile>> RealFileSystem::Reopen(const Path& path) {
  WW_TRY(File file, File::OpenForUpdate(path, Links::kRefuse));
  return std::unique_ptr<NewFile>(std::make_unique<RealNewFile>(std::move(file)));
}

Result<std::unique_ptr<NewFile>> RealFileSystem::Clone(const Path& from, const Path& to) {
  WW_TRY(const File source, File::OpenForRead(from));
  WW_TRY(File copy, File::Create(to));
  if (::ioctl(copy.descriptor(), FICLONE, source.descriptor()) != 0) {
    // This file system cannot share, or not between these two: copy.
    WW_TRY(const MappedFile map, MappedFile::Open(from));
    WW_RETURN_IF_ERROR(copy.WriteAt(0, map.bytes()));
  }
  return std::unique_ptr<NewFile>(std::make_unique<RealNewFile>(std::move(copy)));
}

Status RealFileSystem::MakeLink(std::string_view target, const Path& path) {
  if (::symlink(std::string(target).c_str(), path.c_str()) != 0) return SystemError("create the link", path, errno);
  return Ok();
}

Status RealFileSystem::Rename(const Path& from, const Path& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return Ok();
  const int error = errno;
  return SystemError("rename", from, error).In(fmt::format("cannot write {}", to.string()));
}

Status RealFileSystem::Remove(const Path& path) {
  if (::unlink(path.c_str()) != 0) return SystemError("remove", path, errno);
  return Ok();
}

Status RealFileSystem::MakeDirectory(const Path& path) {
  constexpr mode_t kBeforeUmask = 0777;
  if (::mkdir(path.c_str(), kBeforeUmask) != 0) return SystemError("create", path, errno);
  return Ok();
}

Status RealFileSystem::RemoveDirectory(const Path& path) {
  if (::rmdir(path.c_str()) != 0) return SystemError("remove", path, errno);
  return Ok();
}

Status RealFileSystem::SyncDirectory(const Path& directory) { return weightwire::SyncDirectory(directory); }

Result<std::unique_ptr<FileLock>> RealFileSystem::Lock(const Path& path, LockMode mode) {
  const bool exclusive = mode == LockMode::kExclusive;
  constexpr mode_t kBeforeUmask = 0666;
  const int descriptor =
      ::open(path.c_str(), O_CLOEXEC | O_NOFOLLOW | (exclusive ? O_RDWR | O_CREAT : O_RDONLY), kBeforeUmask);
  if (descriptor < 0) return SystemError("open", path, errno);
  auto lock = std::make_unique<RealLock>(descriptor);
  if (::flock(descriptor, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return SystemError("lock", path, errno);
    return Error(ErrorCode::kUnavailable, fmt::format("{} is locked by another process", path.string()));
  }
  return std::unique_ptr<FileLock>(std::move(lock));
}

}  // namespace weightwire
