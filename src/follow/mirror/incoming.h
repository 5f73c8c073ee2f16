// Files of a checkpoint on their way into a mirror: written into a folder beside it, in any order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "log/anchor.h"

namespace weightwire {

// Files that could run as code (spec/PROTOCOL.md, "Anchors") are passed over unless asked for.
//
// Thread safety: one thread at a time.
class IncomingFiles {
 public:
  // Empties the folder, makes it again, and checks the names: as spec/PROTOCOL.md, "Anchors", says, none twice, none a
  // folder of another.
  static Result<std::unique_ptr<IncomingFiles>> Begin(FileSystem& files, const FileSystem::Path& folder,
                                                      std::span<const AnchorFile> anchor, bool include_code);

  // Without what is passed over.
  [[nodiscard]] std::vector<std::string> names() const;

  // Bytes of a file, by its index in the anchor. What is written last counts.
  Status WriteAt(std::size_t file, std::uint64_t offset, std::span<const std::uint8_t> bytes);
  // Creates the files that nothing was written to, filled with zeros, and returns once all files and their names are
  // durable.
  Status Finish();

 private:
  struct Incoming {
    std::string name;
    std::uint64_t size_bytes = 0;
    bool passed_over = false;
    bool created = false;
    bool sized = false;
    std::unique_ptr<NewFile> open;  // of some of those that are created
  };

  IncomingFiles(FileSystem& files, FileSystem::Path folder) : files_(files), folder_(std::move(folder)) {}

  // Creates the file, or opens it again; closes another where too many are open.
  Result<NewFile*> Open(std::size_t index);

  FileSystem& files_;
  FileSystem::Path folder_;
  std::vector<Incoming> incoming_;
  std::vector<std::size_t> open_;  // by index, the one used last at the end
};

}  // namespace weightwire
