#include "store/backends/file_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "store/backends/directory_walk.h"
#include "store/backends/posix_file.h"
#include "store/key.h"
#include "store/policy.h"

namespace weightwire {
namespace {

WallTime ModifiedTime(const struct stat& status) {
  const std::chrono::nanoseconds time =
      std::chrono::seconds(status.st_mtim.tv_sec) + std::chrono::nanoseconds(status.st_mtim.tv_nsec);
  return WallTime(std::chrono::duration_cast<std::chrono::milliseconds>(time));
}

// A link or a directory in the place of an object is none.
bool MeansNotFound(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP || error == EISDIR; }

bool HasNoHardLinks(int error) { return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK; }

ErrorCode CodeOf(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
    case EROFS:
      return ErrorCode::kRefused;
    case ESTALE:
    case ETIMEDOUT:
    case EAGAIN:
    case EBUSY:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
      return ErrorCode::kUnavailable;
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kIo;
  }
}

// Removes a file when it goes.
class Unlinker {
 public:
  explicit Unlinker(const std::filesystem::path& path) : path_(path) {}
  Unlinker(const Unlinker&) = delete;
  Unlinker& operator=(const Unlinker&) = delete;
  ~Unlinker() { ::unlink(path_.c_str()); }

 private:
  const std::filesystem::path& path_;
};

// A new file with these bytes, on the disk.
int WriteDurably(const std::filesystem::path& path, std::span<const std::uint8_t> bytes) {
  Descriptor file;
  if (const int error = OpenFile(path, O_WRONLY | O_CREAT | O_EXCL, &file); error != 0) return error;
  if (const int error = WriteFully(file, 0, bytes); error != 0) return error;
  return Flush(file);
}

}  // namespace

class FileStore::FileUpload final : public Upload {
 public:
  FileUpload(FileStore* store, std::string_view key, std::uint64_t size_bytes, std::filesystem::path temporary,
             Descriptor file)
      : Upload(size_bytes, kOtherPartBytes),
        store_(store),
        key_(key),
        temporary_(std::move(temporary)),
        file_(std::move(file)) {}
  ~FileUpload() override { ::unlink(temporary_.c_str()); }

  Status Finish() override {
    if (const int error = Flush(file_); error != 0) return store_->Failure("write", key_, error);
    return store_->RenameTo(temporary_, key_);
  }

  Status Abort() override {
    ::unlink(temporary_.c_str());
    return Ok();
  }

 private:
  Status DoWritePart(std::uint64_t index, std::span<const std::uint8_t> bytes) override {
    if (const int error = WriteFully(file_, index * part_bytes(), bytes); error != 0) {
      return store_->Failure("write", key_, error);
    }
    return Ok();
  }

  FileStore* const store_;
  const std::string key_;
  const std::filesystem::path temporary_;
  const Descriptor file_;
};

FileStore::FileStore(std::filesystem::path root, std::string name, LinkCall link)
    : root_(std::move(root)), temporaries_(root_ / kReservedSegment / "tmp"), name_(std::move(name)), link_(link) {}

bool FileStore::HasGone() const {
  struct stat status {};
  return was_there_ && (::stat(root_.c_str(), &status) != 0 || !S_ISDIR(status.st_mode));
}

int FileStore::MakeBelow(const std::filesystem::path& directory) {
  const int error = MakeDirectories(directory, was_there_ ? root_ : std::filesystem::path());
  if (error == 0) was_there_ = true;
  return error;
}

Error FileStore::Failure(const char* doing, std::string_view key, int error) const {
  if (MeansNotFound(error) && HasGone()) {
    return {ErrorCode::kUnavailable,
            fmt::format("cannot {} {} in {}: the directory is not there any more", doing, key, name_)};
  }
  const std::string reason = CodeOf(error) == ErrorCode::kInvalidArgument
                                 ? "a directory cannot hold both an object and others below its name"
                                 : std::generic_category().message(error);
  return {CodeOf(error), fmt::format("cannot {} {} in {}: {}", doing, key, name_, reason)};
}

Error FileStore::NotFound(std::string_view key) {
  struct stat status {};
  const bool exists = ::stat(root_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) was_there_ = true;
  if (exists ? S_ISDIR(status.st_mode) : !was_there_) return ObjectNotFound(key, *this);
  if (exists && !was_there_) {
    return {ErrorCode::kInvalidArgument, fmt::format("{} is not a directory, so it is no bucket", name_)};
  }
  return {ErrorCode::kUnavailable,
          fmt::format("cannot look for {} in {}: {}", key, name_,
                      exists ? "it is not a directory any more" : "the directory is not there any more")};
}

Result<std::vector<std::uint8_t>> FileStore::DoGet(std::string_view key, std::uint64_t max_bytes) {
  Descriptor file;
  int error = OpenFile(root_ / key, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, &file);
  struct stat status {};
  if (error == 0 && ::fstat(file.number(), &status) != 0) error = errno;
  if (error == 0 && !S_ISREG(status.st_mode)) error = ENOENT;
  if (MeansNotFound(error)) return NotFound(key);
  if (error != 0) return Failure("read", key, error);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > max_bytes) return ObjectTooLarge(key, *this, size, max_bytes);
  std::vector<std::uint8_t> bytes(size);
  std::size_t count = 0;
  error = ReadFully(file, 0, bytes, &count);
  if (error != 0) return Failure("read", key, error);
  if (count != size) return ObjectEndsEarly(key, *this, size, count);
  was_there_ = true;
  return bytes;
}

Status FileStore::DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) {
  Descriptor file;
  int error = OpenFile(root_ / key, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, &file);
  std::size_t count = 0;
  if (error == 0) error = ReadFully(file, offset, out, &count);  // a directory opens, but does not read
  if (MeansNotFound(error)) return NotFound(key);
  if (error != 0) return Failure("read", key, error);
  if (count == out.size()) return Ok();
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) return Failure("read", key, errno);
  return ObjectEndsEarly(key, *this, offset + out.size(), static_cast<std::uint64_t>(status.st_size));
}

Result<ObjectInfo> FileStore::DoStat(std::string_view key) {
  struct stat status {};
  int error = StatLink(root_ / key, &status);
  if (error == 0 && !S_ISREG(status.st_mode)) error = ENOENT;
  if (MeansNotFound(error)) return NotFound(key);
  if (error != 0) return Failure("look at", key, error);
  return ObjectInfo{std::string(key), static_cast<std::uint64_t>(status.st_size), ModifiedTime(status)};
}

Result<std::vector<ObjectInfo>> FileStore::DoList(std::string_view prefix, std::string_view start_after,
                                                  std::size_t limit) {
  std::vector<ObjectInfo> found;
  const int error = WalkKeys(root_, prefix, start_after, [&](const std::string& key) {
    struct stat status {};
    // It may have been removed since its name was read.
    if (StatLink(root_ / key, &status) == 0 && S_ISREG(status.st_mode)) {
      found.push_back({key, static_cast<std::uint64_t>(status.st_size), ModifiedTime(status)});
    }
    return found.size() < limit;
  });
  if (error != 0) return Failure("list", prefix, error);
  if (HasGone()) return Failure("list", prefix, ENOENT);
  return found;
}

Result<std::filesystem::path> FileStore::NewTemporary() {
  if (const int error = MakeBelow(temporaries_); error != 0) {
    if (HasGone()) return Failure("write", "anything", error);
    return Error(CodeOf(error), fmt::format("cannot write to {}: cannot make the directory {}: {}", name_,
                                            temporaries_.string(), std::generic_category().message(error)));
  }
  const std::lock_guard lock(random_mutex_);
  return temporaries_ / random_.Hex128();
}

void FileStore::RemoveOldTemporariesOnce(const std::filesystem::path& fresh) {
  struct stat now {};
  if (cleaned_.exchange(true) || StatLink(fresh, &now) != 0) return;
  std::error_code error;  // ends it: what is left stays for the next writer
  for (std::filesystem::directory_iterator entry(temporaries_, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    struct stat status {};
    if (StatLink(entry->path(), &status) == 0 && S_ISREG(status.st_mode) &&
        ModifiedTime(status) < ModifiedTime(now) - kTemporaryFileAge) {
      ::unlink(entry->path().c_str());
    }
  }
}

// Also those of the directories on the way: whoever made one may have been killed before its name was on the disk.
int FileStore::FlushNames(std::string_view key) const {
  std::filesystem::path directory = (root_ / key).parent_path();
  for (auto levels = 1 + std::count(key.begin(), key.end(), '/'); levels != 0; --levels) {
    if (const int error = FlushDirectory(directory); error != 0) return error;
    directory = directory.parent_path();
  }
  return 0;
}

Status FileStore::RenameTo(const std::filesystem::path& temporary, std::string_view key) {
  const std::filesystem::path path = root_ / key;
  int error = ENOENT;
  for (int attempt = 0; error == ENOENT && attempt < kFolderAttempts; ++attempt) {
    error = MakeBelow(path.parent_path());
    if (error == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
    // An empty directory, left by a crash, gives way.
    if (error == EISDIR && ::rmdir(path.c_str()) == 0) error = ENOENT;
  }
  if (error != 0) return Failure("write", key, error);
  // From here on it is there for readers, whether or not it would survive a crash.
  error = FlushNames(key);
  if (error != 0) return Error(ErrorCode::kUnknownOutcome, Failure("flush the name of", key, error).message());
  return Ok();
}

Result<PutOutcome> FileStore::LinkIfAbsent(const std::filesystem::path& temporary, std::string_view key) {
  const std::filesystem::path path = root_ / key;
  int error = ENOENT;
  for (int attempt = 0; error == ENOENT && attempt < kFolderAttempts; ++attempt) {
    error = MakeBelow(path.parent_path());
    if (error != 0) continue;
    if (link_(temporary.c_str(), path.c_str()) != 0) error = errno;
    if (error != 0) {
      // A network file system may repeat a link whose answer was lost and then report that the name is taken. A second
      // link on our own file means that it was us.
      struct stat status {};
      if (StatLink(temporary, &status) == 0 && status.st_nlink == 2) error = 0;
    }
    if (HasNoHardLinks(error)) {
      error = ::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0 ? 0 : errno;
      if (error == EINVAL || error == ENOSYS) {
        return Error(ErrorCode::kUnsupported,
                     fmt::format("cannot create {} in {}: this file system has neither hard links nor exclusive "
                                 "renames, so two writers could not be told apart; use another one",
                                 key, name_));
      }
    }
    if (error == EEXIST) {
      struct stat status {};
      if (StatLink(path, &status) == 0 && S_ISDIR(status.st_mode)) {
        error = ::rmdir(path.c_str()) == 0 ? ENOENT : EISDIR;
      }
    }
  }
  if (error != 0 && error != EEXIST) return Failure("create", key, error);
  // Also when it is another's: what we report must still be so after a crash.
  const int flush_error = FlushNames(key);
  if (flush_error != 0 && flush_error != ENOENT) {
    return Error(ErrorCode::kUnknownOutcome, Failure("flush the name of", key, flush_error).message());
  }
  return error == 0 ? PutOutcome::kCreated : PutOutcome::kExists;
}

Status FileStore::DoPut(std::string_view key, std::span<const std::uint8_t> bytes) {
  WW_TRY(const std::filesystem::path temporary, NewTemporary());
  const Unlinker unlinker(temporary);
  if (const int error = WriteDurably(temporary, bytes); error != 0) return Failure("write", key, error);
  RemoveOldTemporariesOnce(temporary);
  return RenameTo(temporary, key);
}

Result<PutOutcome> FileStore::DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) {
  WW_TRY(const std::filesystem::path temporary, NewTemporary());
  const Unlinker unlinker(temporary);
  if (const int error = WriteDurably(temporary, bytes); error != 0) return Failure("create", key, error);
  RemoveOldTemporariesOnce(temporary);
  return LinkIfAbsent(temporary, key);
}

Result<std::unique_ptr<Upload>> FileStore::DoStartUpload(std::string_view key, std::uint64_t size_bytes) {
  WW_TRY(std::filesystem::path temporary, NewTemporary());
  Descriptor file;
  if (const int error = OpenFile(temporary, O_WRONLY | O_CREAT | O_EXCL, &file); error != 0) {
    return Failure("write", key, error);
  }
  RemoveOldTemporariesOnce(temporary);
  return std::unique_ptr<Upload>(
      std::make_unique<FileUpload>(this, key, size_bytes, std::move(temporary), std::move(file)));
}

Status FileStore::DoRemove(std::string_view key) {
  if (::unlink((root_ / key).c_str()) != 0) {
    const int error = errno;
    if (MeansNotFound(error) && !HasGone()) return Ok();
    return Failure("remove", key, error);
  }
  // Folders that have become empty go too, up to the store's own.
  std::string_view folder = key.substr(0, key.rfind('/') + 1);
  while (!folder.empty() && ::rmdir((root_ / folder).c_str()) == 0) {
    folder.remove_suffix(1);
    folder = folder.substr(0, folder.rfind('/') + 1);
  }
  const int error = FlushDirectory(root_ / folder);
  if (error != 0 && error != ENOENT) return Failure("remove", key, error);
  return Ok();
}

Result<WallTime> FileStore::Now() {
  struct stat status {};
  // Reading the time must not be what makes the directory.
  if (StatLink(root_, &status) == 0) {
    const auto temporary = NewTemporary();
    if (temporary.ok()) {
      const Unlinker unlinker(temporary.value());
      Descriptor file;
      if (OpenFile(temporary.value(), O_WRONLY | O_CREAT | O_EXCL, &file) == 0 &&
          ::fstat(file.number(), &status) == 0) {
        return ModifiedTime(status);
      }
    }
  }
  return SystemClock().Wall();
}

}  // namespace weightwire
