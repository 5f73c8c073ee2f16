// The file system of this machine.
#pragma once

#include "base/filesystem.h"

namespace weightwire {

// Has no state: as many as one likes, and what it gives out may outlive it.
class RealFileSystem final : public FileSystem {
 public:
  Result<std::optional<FileInfo>> Stat(const Path& path) override;
  Result<std::vector<std::uint8_t>> Read(const Path& path, std::uint64_t max_bytes) override;
  Result<std::vector<std::string>> List(const Path& directory) override;
  Result<std::unique_ptr<FileMap>> Map(const Path& path) override;
  Result<std::string> ReadLink(const Path& path) override;
  std::string BootId() override;

  Result<std::unique_ptr<UpdateMap>> MapForUpdate(const Path& path) override;
  Result<std::unique_ptr<NewFile>> Create(const Path& path) override;
  Result<std::unique_ptr<NewFile>> Reopen(const Path& path) override;
  Result<std::unique_ptr<NewFile>> Clone(const Path& from, const Path& to) override;
  Status MakeLink(std::string_view target, const Path& path) override;
  Status Rename(const Path& from, const Path& to) override;
  Status Remove(const Path& path) override;
  Status MakeDirectory(const Path& path) override;
  Status RemoveDirectory(const Path& path) override;
  Status SyncDirectory(const Path& directory) override;
  Result<std::unique_ptr<FileLock>> Lock(const Path& path, LockMode mode) override;
};

}  // namespace weightwire
