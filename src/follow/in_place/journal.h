// Journals: positions with their old and new bits, of a change to files in place. This file has the format, a reader,
// and the replay that brings whole files to one of the two states. journal_writer.h writes journals.
//
// The journal holds bits, not differences and not the delta itself, because a difference leads nowhere once part of its
// base is overwritten. A replay could not know which units hold old bits and which hold new ones. With both bits of
// every unit, the new state can be completed or the old one restored, whatever part of the change has reached the
// files.
//
//   "WWJRNL03"
//   state before, state after           32 bytes each
//   note                                varint length, bytes: defined by the caller
//   digests                             varint count; the tensors' digests before, then after, 16 bytes each
//   files                               varint count; for each: varint length, name, varint size
//   blocks                              varint size, then as many bytes, until a size of 0:
//       varint file, byte width of a unit, varint offset of the tensor in the file, varint first unit, varint changes,
//       a byte for each change: the gap after the previous change (at first: after the first unit), at most 255,
//       the old units, the new units, and a varint for each byte of 255: the rest of that gap
//   digest                              of all bytes before it, computed like a tensor's (codec/digest/digest.h)
//
// So a changed unit (codec/format/units.h) costs one gap, mostly of one byte, and twice its width; and the lists of a
// staged change are copied unchanged. Writing the journal is on the critical path of every update, so it carries the
// cheap linear digest instead of SHA-256: it must detect crash and disk damage, not tampering.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "base/sha256.h"
#include "base/threads.h"
#include "codec/digest/digest.h"
#include "codec/kernels/kernels.h"

namespace weightwire {

inline constexpr std::string_view kJournalMagic = "WWJRNL03";

// A gap that does not fit into its byte.
inline constexpr std::uint64_t kLongJournalGap = 255;

inline constexpr std::uint64_t kMaxJournalNoteBytes = std::uint64_t{64} << 10;

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

// Writes the journal's new bits (or its old ones, for kBack) into its files in `directory`, and returns once they are
// durable. The journal must stay until then, because a replay that a crash stops is repeated from the start.
//
// Opens and checks every file before it writes the first byte. kIo means that the disk failed: replay again. After any
// other error nothing was written: a file is missing (kNotFound), is not a regular file (kInvalidArgument), or holds
// bits that are neither old nor new (kMismatch).
Status ReplayJournal(FileSystem& files, const FileSystem::Path& directory, const Journal& journal,
                     Journal::Direction direction, ThreadPool& pool);

}  // namespace weightwire
