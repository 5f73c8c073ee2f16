// The journal of a change that is made where the weights lie: positions with their old and new bits.
//
// It holds bits and not differences, nor the delta itself, because a difference leads nowhere once part of its base is
// overwritten: a replay cannot know which units hold old bits and which new ones. With both bits of every unit, the new
// state can be completed or the old one restored, whatever part of the change has reached the files. It is written whole and
// under its own name before the first byte of the weights changes, and stays until all of them are on the disk.
//
//   "WWJRNL03"
//   state before, state after           32 bytes each
//   note                                varint length, bytes: the caller's own
//   digests                             varint count; the tensors' digests before, then after, 16 bytes each
//   files                               varint count; for each: varint length, name, varint size
//   blocks                              varint size, then as many bytes, until a size of 0:
//       varint file, byte width of a unit, varint place of the tensor in the file, varint first unit, varint changes,
//       a byte for each change: the gap from the end of the one before (the first: from the first unit), at most 255,
//       the old units, the new units, and for each 255 a varint: what is missing from that gap
//   digest                              of everything before, as a tensor's bytes have one (codec/digest/digest.h)
//
// So a unit (codec/format/units.h) takes one gap, of mostly one byte, and twice its width; and the lists of a staged
// change are copied as they are. Writing it is in the way of every change, which is why it has a digest and no SHA-256:
// it is to find what a crash or a disk has damaged, and nobody else's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "base/sha256.h"
#include "base/threads.h"
#include "codec/decode/staged_change.h"
#include "codec/digest/digest.h"
#include "codec/kernels/kernels.h"
#include "tensor/checkpoint.h"

namespace weightwire {

// Where the data of a tensor of a layout lies. A tensor that files hold under both names of a tie has two places.
struct TensorPlace {
  std::size_t file = 0;  // in Checkpoint::files()
  std::uint64_t offset = 0;
  std::size_t tensor = 0;  // in the layout

  bool operator==(const TensorPlace&) const = default;
};

// All places of the layout's tensors in the files, in their order. kMismatch for a name the layout does not have.
Result<std::vector<TensorPlace>> PlacesIn(std::span<const CheckpointFile> files, const Layout& layout);

struct JournalRequest {
  const StagedChange* change = nullptr;
  std::string note;
  std::span<const CheckpointFile> files;
  std::span<const TensorPlace> places;
  // The tensor's data as it lies there now, by the layout; bits that are not the change's old ones are kMismatch. A
  // tensor that is new in the change is compared with what is there, so its data is needed in any case.
  std::span<const std::span<const std::uint8_t>> held;
  bool check_held = false;
};

// Writes the journal of a change into a file of that name, in place of what has it, and returns the file as it is: not
// synced yet. After an error there is none. What makes it count is the caller's: to sync it, and then to give it the
// name by which it is looked for.
Result<std::unique_ptr<NewFile>> WriteJournal(FileSystem& files, const FileSystem::Path& path,
                                              const JournalRequest& request, const Kernels& kernels, ThreadPool& pool);

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
  [[nodiscard]] Status CheckHeld(std::size_t file, std::span<const std::uint8_t> bytes, ThreadPool& pool) const;

  // Writes the new bits, or the old ones. REQUIRES: CheckHeld has passed.
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

// A journal's note has at most so many bytes.
inline constexpr std::uint64_t kMaxJournalNoteBytes = std::uint64_t{64} << 10;

}  // namespace weightwire
