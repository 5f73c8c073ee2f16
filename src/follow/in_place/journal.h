// Reading a journal (journal_format.h) and writing its bits into memory. journal_replay.h brings whole files to one of
// its two states.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "base/sha256.h"
#include "base/threads.h"
#include "codec/digest/digest.h"
#include "codec/kernels/kernels.h"

namespace weightwire {

// A complete journal, its digest checked. Immutable.
class Journal {
 public:
  struct ChangedFile {
    std::string name;
    std::uint64_t size_bytes = 0;
  };
  enum class Direction : std::uint8_t { kForward, kBack };

  // kNotFound when there is none, kCorrupt when it is damaged.
  static Result<Journal> Open(FileSystem& files, const FileSystem::Path& path, const Kernels& kernels);

  [[nodiscard]] const Sha256Digest& state_before() const { return state_before_; }
  [[nodiscard]] const Sha256Digest& state_after() const { return state_after_; }
  [[nodiscard]] const std::string& note() const { return note_; }
  [[nodiscard]] const std::vector<Digest>& digests_before() const { return digests_before_; }
  [[nodiscard]] const std::vector<Digest>& digests_after() const { return digests_after_; }
  [[nodiscard]] const std::vector<ChangedFile>& files() const { return files_; }

  // kMismatch unless the file has its size, and every byte of every change is the old or the new one: a write may have
  // stopped anywhere.
  [[nodiscard]] Status CheckFile(std::size_t file, std::span<const std::uint8_t> bytes, ThreadPool& pool) const;

  // Writes the new bits, or the old ones. REQUIRES: CheckFile has passed.
  void Write(std::size_t file, std::span<std::uint8_t> bytes, Direction direction, ThreadPool& pool) const;

 private:
  struct Block {
    std::size_t file = 0;
    int unit_bytes = 1;
    std::uint64_t offset = 0;  // of the tensor in the file
    std::uint64_t first_unit = 0;
    std::uint64_t changes = 0;
    std::span<const std::uint8_t> coded;  // gaps and units
  };

  Journal() = default;
  Status Parse(const Kernels& kernels);
  Result<Block> ParseBlock(std::span<const std::uint8_t> body) const;

  std::unique_ptr<FileMap> map_;
  Sha256Digest state_before_{};
  Sha256Digest state_after_{};
  std::string note_;
  std::vector<Digest> digests_before_;
  std::vector<Digest> digests_after_;
  std::vector<ChangedFile> files_;
  std::vector<Block> blocks_;
};

}  // namespace weightwire
