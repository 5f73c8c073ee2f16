// Files: whole reads and writes at an offset, read-only maps, and files that appear complete or not at all.
//
// Every error names the path and the operating system's reason. Offsets and sizes are 64-bit throughout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "base/result.h"

namespace weightwire {

// What to do about a file or directory that already has the wanted name.
enum class Existing : std::uint8_t { kRefuse, kReplace };

// What to do about a path whose last component is a link.
enum class Links : std::uint8_t { kFollow, kRefuse };

// "cannot <doing> <path>: <the operating system's reason>"; kNotFound for ENOENT, otherwise kIo.
Error SystemError(const char* doing, const std::filesystem::path& path, int error);

// An open file; owns its descriptor. Movable. ReadAt and WriteAt may be called by several threads.
class File {
 public:
  // kNotFound when there is none.
  static Result<File> OpenForRead(const std::filesystem::path& path);
  static Result<File> OpenForUpdate(const std::filesystem::path& path, Links links = Links::kFollow);
  // An error when the name is taken.
  static Result<File> Create(const std::filesystem::path& path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] Result<std::uint64_t> size() const;

  // Fills all of `bytes`; an end of file before that is kCorrupt.
  Status ReadAt(std::uint64_t offset, std::span<std::uint8_t> bytes) const;
  // Writes all of `bytes`, extending the file where needed.
  Status WriteAt(std::uint64_t offset, std::span<const std::uint8_t> bytes) const;
  // Cuts the file, or lets it grow by zeros.
  Status Resize(std::uint64_t size_bytes) const;
  // A hint: these bytes are to go to the disk now, and nobody waits for them.
  void BeginSync(std::uint64_t offset, std::uint64_t size_bytes) const;
  // Returns once the data is on the disk.
  Status Sync() const;

  // For calls that have no function here. Stays this object's.
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  File(int descriptor, std::filesystem::path path) : descriptor_(descriptor), path_(std::move(path)) {}

  int descriptor_ = -1;
  std::filesystem::path path_;
};

// Makes creations, renames and removals in a directory survive a crash.
Status SyncDirectory(const std::filesystem::path& directory);

// Renames a file or a directory within a file system and makes that durable. With kRefuse an existing `to` stays and
// is an error.
Status Rename(const std::filesystem::path& from, const std::filesystem::path& to, Existing existing);

// A name in the same directory as `path` that nobody uses: hidden, ending in ".tmp", random.
std::filesystem::path TemporarySibling(const std::filesystem::path& path);

// A whole file, mapped read-only. Movable; the bytes stay where they are. An empty file is an empty span.
//
// The file must not be shortened meanwhile: reading past its end is then a SIGBUS, which no check of ours can prevent.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return {data_, size_}; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile(const std::uint8_t* data, std::size_t size, std::filesystem::path path)
      : data_(data), size_(size), path_(std::move(path)) {}

  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  std::filesystem::path path_;
};

// Copies the bytes of a file to a new name, which must not be taken, and returns once they are on the disk.
Status CopyFile(const std::filesystem::path& from, const std::filesystem::path& to);

// A file under construction. It lies under a temporary name in the directory of `path` until Commit gives it its name;
// destroyed before that, it is removed.
class AtomicFile {
 public:
  // With kRefuse an existing `path` is an error now, and again at Commit.
  static Result<AtomicFile> Create(const std::filesystem::path& path, Existing existing);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) = delete;
  ~AtomicFile();

  Status Append(std::span<const std::uint8_t> bytes);

  // Returns once the whole file is on the disk under its own name. Call it at most once.
  Status Commit();

 private:
  AtomicFile(File file, std::filesystem::path path, Existing existing)
      : file_(std::move(file)), path_(std::move(path)), existing_(existing) {}

  File file_;
  std::filesystem::path path_;
  Existing existing_;
  std::uint64_t size_ = 0;
  bool pending_ = true;
};

}  // namespace weightwire
