// The spool: versions that are decided but not yet committed, on the disk, so that a publisher that dies goes on with
// them (spec/PROTOCOL.md, "Duties of a writer", 6).
//
//   DIRECTORY/<version, 20 digits>/record.json         the record's bytes, as they will be put
//                                 /part.safetensors    the delta's part, if it has one
//                                 /layout.json         the layout, if the version before has another
//
// An entry is written under another name and renamed: it is there whole, and durable, or not at all.
//
// Thread safety: one thread writes, another may open and remove entries that are complete.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "log/run.h"
#include "tensor/layout.h"

namespace weightwire {

// An entry, checked: the record is one, and the part is the one it names.
struct SpoolEntry {
  KnownRecord known;
  std::string record_json;
  std::shared_ptr<const Layout> layout;  // if it was spooled
};

// What an earlier process has left under a version's name.
struct FoundEntry {
  Version version = 0;
  // kCorrupt or kNotFound: it was being removed when the process died, or is damaged.
  Result<SpoolEntry> entry;
};

class Spool {
 public:
  // `files` must outlive it.
  Spool(FileSystem& files, FileSystem::Path directory) : files_(files), directory_(std::move(directory)) {}

  // Makes the directory if need be, removes what was not complete, and gives what is there, in order of the versions.
  // An error if something cannot be read just now: it may be whole, and going on without it would be wrong.
  Result<std::vector<FoundEntry>> Recover();

  // Replaces an entry of the same version. Durable once it returns; after an error it is not there.
  Status Write(Version version, std::string_view record_json, std::optional<std::span<const std::uint8_t>> part,
               const Layout* layout);

  [[nodiscard]] Result<std::unique_ptr<FileMap>> OpenPart(Version version) const;

  // Nothing there is no error. Not durable: what comes back after a crash is found to be committed, and removed again.
  Status Remove(Version version);

 private:
  [[nodiscard]] FileSystem::Path Entry(Version version) const;
  [[nodiscard]] Result<SpoolEntry> Read(Version version) const;
  Status WriteFile(const FileSystem::Path& path, std::span<const std::uint8_t> bytes);
  Status TryWrite(Version version, std::string_view record_json, std::optional<std::span<const std::uint8_t>> part,
                  const Layout* layout);

  FileSystem& files_;
  const FileSystem::Path directory_;
};

// Decides about spooled versions when a publisher starts.
// Returns the versions that are still to be published, in order, and removes the others: those that are committed, and
// those that are damaged or follow a damaged one. kConflict if another writer has taken the place of one, unless
// `discard_conflicting`, which removes such versions, or if the spool belongs to another run. `directory` names it in
// messages.
Result<std::vector<SpoolEntry>> RecoverSpool(const Run& run, Spool& spool, const std::string& directory,
                                             const std::optional<KnownRecord>& newest, bool discard_conflicting);

}  // namespace weightwire
