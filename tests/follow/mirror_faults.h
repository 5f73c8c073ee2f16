// Faults that a test plants below a mirror: a file system that reports chosen effects as done and does not do them.
//
// Each fault is what a careless mirror would get wrong. The mirror itself is correct, so a test that plants a fault and
// finds nothing does not check what it claims to check.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/filesystem.h"

namespace weightwire::testing {

enum class MirrorFault : std::uint8_t {
  kNone,
  kJournalNotDurable,        // weights change before the journal and its name are durable
  kJournalHoldsDifferences,  // recovery adds differences to what the files hold, as a delta would have to
  kNoWritingState,           // state.json never says that the files are being written
  kWeightsNotSynced,         // a sync of changed weights does nothing
  kReplacementNotSaved,      // files take their places although no list of them was saved
  kLoadNotSynced,            // loaded files take their places before they are durable
};

// The file system and the mirror in `directory` that uses it have one fault. `inner` must outlive it.
//
// Thread safety: as `inner`'s, but kJournalNotDurable allows one thread.
class FaultyMirrorDisk final : public FileSystem {
 public:
  FaultyMirrorDisk(FileSystem& inner, Path directory, MirrorFault fault)
      : inner_(inner), directory_(std::move(directory)), fault_(fault) {}

  Result<std::optional<FileInfo>> Stat(const Path& path) override { return inner_.Stat(path); }
  Result<std::vector<std::uint8_t>> Read(const Path& path, std::uint64_t max_bytes) override {
    return inner_.Read(path, max_bytes);
  }
  Result<std::vector<std::string>> List(const Path& directory) override { return inner_.List(directory); }
  Result<std::unique_ptr<FileMap>> Map(const Path& path) override { return inner_.Map(path); }
  Result<std::string> ReadLink(const Path& path) override { return inner_.ReadLink(path); }
  std::string BootId() override { return inner_.BootId(); }

  Result<std::unique_ptr<UpdateMap>> MapForUpdate(const Path& path) override;
  Result<std::unique_ptr<NewFile>> Create(const Path& path) override;
  Result<std::unique_ptr<NewFile>> Reopen(const Path& path) override;
  Result<std::unique_ptr<NewFile>> Clone(const Path& from, const Path& to) override { return inner_.Clone(from, to); }
  Status MakeLink(std::string_view target, const Path& path) override { return inner_.MakeLink(target, path); }
  Status Rename(const Path& from, const Path& to) override;
  Status Remove(const Path& path) override { return inner_.Remove(path); }
  Status MakeDirectory(const Path& path) override { return inner_.MakeDirectory(path); }
  Status RemoveDirectory(const Path& path) override { return inner_.RemoveDirectory(path); }
  Status SyncDirectory(const Path& directory) override;
  Result<std::unique_ptr<FileLock>> Lock(const Path& path, LockMode mode) override { return inner_.Lock(path, mode); }

 private:
  class UnsyncedFile;
  class UnsyncedMap;
  class DifferenceMap;

  [[nodiscard]] bool IsIncoming(const Path& path) const;
  [[nodiscard]] std::unique_ptr<NewFile> WithoutSync(std::unique_ptr<NewFile> file, const Path& path) const;

  FileSystem& inner_;
  const Path directory_;
  const MirrorFault fault_;
  bool journal_was_named_ = false;  // and the sync of that name has not been left out yet
};

}  // namespace weightwire::testing
