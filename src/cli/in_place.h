// Changing a checkpoint where it lies, so that a crash at any point leaves the old state or a journal from which the
// new one is completed, never a mix that nobody can resolve.
//
// The journal lies beside the weights and holds positions with their old and new bits, not the delta: a delta cannot be
// decoded any more once its base is half written. It is complete, flushed and under its own name before the first byte
// of the weights changes, and is removed after the last one is on the disk. Finishing an update means writing the new
// bits again, wherever the last attempt stopped.
//
//   .weightwire-journal            of a directory
//   .weightwire-journal.<file>     of a single file
//   <either>.tmp                   one that is not complete; of no value
//
// What a journal holds: "WWJRNL01"; the state digests before and after, 32 bytes each; for each file a byte 1, its name
// (varint length, bytes), its size (varint), runs (varint gap from the end of the run before, varint length, the old
// bytes, the new bytes) and a run of length 0; a byte 0; the SHA-256 of all that.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "base/result.h"
#include "codec/staged_change.h"
#include "tensor/checkpoint.h"

namespace weightwire {

// What an update does to the disk, one after another.
enum class DiskEffect : std::uint8_t {
  kCreateJournal,
  kWriteJournal,
  kSyncJournal,
  kNameJournal,
  kWriteWeights,
  kSyncWeights,
  kRemoveJournal,
  kSyncDirectory,
};

// For tests: asked before every effect. Anything but kGoOn ends the update as if the process had been killed there,
// before the effect or in the middle of it.
enum class Fault : std::uint8_t { kGoOn, kStopBefore, kStopHalfway };
using FaultHook = std::function<Fault(DiskEffect)>;

// Held from before a checkpoint is read until it is updated: keeps other updates of it, or of the directory it lies in,
// away. Movable.
class UpdateLock {
 public:
  // An error when another process holds it.
  static Result<UpdateLock> Take(const std::filesystem::path& checkpoint);

  UpdateLock(UpdateLock&& other) noexcept;
  UpdateLock& operator=(UpdateLock&& other) = delete;
  ~UpdateLock();

 private:
  UpdateLock() = default;

  int directory_ = -1;
  int file_ = -1;
};

// The checkpoint whose update must be finished before this one can be read, if there is one: itself, or the directory
// it lies in.
Result<std::optional<std::filesystem::path>> PendingUpdate(const std::filesystem::path& checkpoint);

// Finishes what is pending for the checkpoint, and removes what is left of journals that were never complete. Returns
// whether there was anything to finish. REQUIRES: the lock is held.
//
// Errors: kMismatch when the weights hold bits that are neither old nor new, kCorrupt when the journal is damaged; both
// before anything is written.
Result<bool> FinishPendingUpdate(const std::filesystem::path& checkpoint, const FaultHook& hook = {});

// Writes the change into the files of the checkpoint, under every name a tied tensor has there. `base` is the
// checkpoint at `path`, seen as change.layout_before(). REQUIRES: the lock is held, nothing is pending, the base is at
// change.state_before().
//
// Errors: kInvalidArgument when the change would alter the layout, or a file of weights is a link: others may use what
// it points to. After an error from the disk the update may be pending; the sentence says so.
Status UpdateInPlace(const std::filesystem::path& path, const Checkpoint& base, const StagedChange& change,
                     const FaultHook& hook = {});

}  // namespace weightwire
