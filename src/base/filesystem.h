// The file system as an object: everything that the crash-safe parts do to a disk, and nothing else.
//
// Every effect is a call of its own, so that a test can stand in for the disk and let the machine die between any two.
// What survives a crash:
//   - data of a file: what was written before a Sync() of that file. Of the rest any part may be there or not;
//   - names (creations, renames, removals): those before a SyncDirectory() of the directory they are in. Of the rest
//     each may have happened or not. A rename within a directory happens whole or not at all; one into another
//     directory may leave the file under both names, never under none.
// A rename does not sync the data of the file.
//
// Links are never followed by what writes: a path whose last component is a link is refused.
//
// Thread safety: a FileSystem may be used by several threads. Objects it gives out by one thread at a time, unless they
// say otherwise. They may outlive the names they were opened by, not the FileSystem.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weightwire {

enum class FileKind : std::uint8_t { kFile, kDirectory, kLink, kOther };

struct FileInfo {
  FileKind kind = FileKind::kOther;
  std::uint64_t size_bytes = 0;  // of a file
  std::uint64_t names = 1;       // of a file: how many it has (hard links)

  bool operator==(const FileInfo&) const = default;
};

// A whole file, mapped read-only. It shows what is written to the file meanwhile; the file must not get shorter.
class FileMap {
 public:
  FileMap() = default;
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;
  virtual ~FileMap() = default;

  // Stay where they are as long as the map lives.
  [[nodiscard]] virtual std::span<const std::uint8_t> bytes() const = 0;
};

// A whole file, mapped so that it can be changed where it lies.
class UpdateMap {
 public:
  UpdateMap() = default;
  UpdateMap(const UpdateMap&) = delete;
  UpdateMap& operator=(const UpdateMap&) = delete;
  virtual ~UpdateMap() = default;

  [[nodiscard]] virtual std::uint64_t size_bytes() const = 0;

  // The bytes [offset, offset + size) to be written to now, by any thread; the call is the effect. REQUIRES: within the
  // file.
  virtual Result<std::span<std::uint8_t>> ForWriting(std::uint64_t offset, std::uint64_t size) = 0;

  // Returns once everything written to the file, by this map or otherwise, is on the disk.
  virtual Status Sync() = 0;
};

// A file being written: created just now, or opened again to go on with it.
class NewFile {
 public:
  NewFile() = default;
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  virtual ~NewFile() = default;

  // At the end of what Append has written so far. REQUIRES: not opened again.
  virtual Status Append(std::span<const std::uint8_t> bytes) = 0;
  // Anywhere, in any order; several threads may write at once. The file grows as needed.
  virtual Status WriteAt(std::uint64_t offset, std::span<const std::uint8_t> bytes) = 0;
  // What is new reads as zeros.
  virtual Status Resize(std::uint64_t size_bytes) = 0;
  // Returns once the data is on the disk, also what was written before the file was opened again.
  virtual Status Sync() = 0;
};

// A lock that is held; destroying it lets go. So does the end of the process.
class FileLock {
 public:
  FileLock() = default;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  virtual ~FileLock() = default;
};

enum class LockMode : std::uint8_t { kShared, kExclusive };

class FileSystem {
 public:
  using Path = std::filesystem::path;

  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  virtual ~FileSystem() = default;

  // --- looking ---

  // What the name is; a link is not followed. Nothing when there is no such name.
  virtual Result<std::optional<FileInfo>> Stat(const Path& path) = 0;
  // All bytes of a file; kLimit when there are more than max_bytes, kNotFound when it is not there.
  virtual Result<std::vector<std::uint8_t>> Read(const Path& path, std::uint64_t max_bytes) = 0;
  // Names in a directory, sorted, without "." and ".."; kLimit above kMaxDirectoryEntries.
  virtual Result<std::vector<std::string>> List(const Path& directory) = 0;
  // Follows a link. kInvalidArgument when it is not a regular file, kNotFound when it is not there.
  virtual Result<std::unique_ptr<FileMap>> Map(const Path& path) = 0;
  // Where a link leads, as it says.
  virtual Result<std::string> ReadLink(const Path& path) = 0;

  // Changes whenever the machine starts: what was written under the same one has not been lost by a power failure
  // since. Empty when there is no telling.
  virtual std::string BootId() = 0;

  // --- effects ---

  virtual Result<std::unique_ptr<UpdateMap>> MapForUpdate(const Path& path) = 0;
  // An error when the name is taken.
  virtual Result<std::unique_ptr<NewFile>> Create(const Path& path) = 0;
  // A file that is there, to go on writing to it.
  virtual Result<std::unique_ptr<NewFile>> Reopen(const Path& path) = 0;
  // A new file with the contents of another, sharing their blocks on the disk where the file system can do that.
  virtual Result<std::unique_ptr<NewFile>> Clone(const Path& from, const Path& to) = 0;
  // A link that says `target`. An error when the name is taken.
  virtual Status MakeLink(std::string_view target, const Path& path) = 0;
  // A file, directory or link. A file or link that has the name `to` is replaced.
  virtual Status Rename(const Path& from, const Path& to) = 0;
  // A file or a link. kNotFound when it is not there.
  virtual Status Remove(const Path& path) = 0;
  // An error when the name is taken.
  virtual Status MakeDirectory(const Path& path) = 0;
  // An empty one.
  virtual Status RemoveDirectory(const Path& path) = 0;
  virtual Status SyncDirectory(const Path& directory) = 0;

  // Never waits: kUnavailable when somebody else holds it, in this process or another. An exclusive lock creates the
  // file if need be; a shared one needs it, and no more than the right to read it.
  virtual Result<std::unique_ptr<FileLock>> Lock(const Path& path, LockMode mode) = 0;
};

// Makes `bytes` the contents of `path`, instead of what it was: a crash leaves the old file or the new one. Uses
// `path`.tmp on the way, and replaces what a crash has left there.
Status WriteDurably(FileSystem& files, const FileSystem::Path& path, std::span<const std::uint8_t> bytes);
Status WriteDurably(FileSystem& files, const FileSystem::Path& path, std::string_view text);

// Whether it is one, or a link to one.
Result<bool> IsDirectory(FileSystem& files, const FileSystem::Path& path);

// Removes a file, or a directory with everything in it, to a depth of kMaxDirectoryDepth. Nothing there is no error.
// Not synced.
Status RemoveTree(FileSystem& files, const FileSystem::Path& path);

}  // namespace weightwire
