// Changing a checkpoint where it lies, so that a crash at any point leaves the old state or a journal from which the
// new one is completed, never a mix that nobody can resolve.
//
// The journal (follow/mirror/journal.h) lies beside the weights. It is complete, on the disk and under its own name
// before the first byte of the weights changes, and is removed after the last one is on the disk. Finishing an update
// means writing the new bits again, wherever the last attempt stopped.
//
//   .weightwire-journal            of a directory
//   .weightwire-journal.<file>     of a single file
//   <either>.tmp                   one that is not complete; of no value
#pragma once

#include <filesystem>
#include <optional>

#include "base/filesystem.h"
#include "base/result.h"
#include "base/threads.h"
#include "codec/decode/staged_change.h"
#include "codec/kernels/kernels.h"
#include "tensor/checkpoint.h"

namespace weightwire {

// What an update works with; all must outlive the call.
struct InPlaceTools {
  FileSystem& files;
  const Kernels& kernels;
  ThreadPool& pool;
};

// The checkpoint whose update must be finished before this one can be read, if there is one: itself, or the directory
// it lies in.
Result<std::optional<FileSystem::Path>> PendingUpdate(FileSystem& files, const FileSystem::Path& checkpoint);

// Finishes what is pending for the checkpoint, and removes what is left of journals that were never complete. Returns
// whether there was anything to finish. REQUIRES: the lock (cli/update_lock.h) is held.
//
// Errors: kMismatch when the weights hold bits that are neither old nor new, kCorrupt when the journal is damaged; both
// before anything is written.
Result<bool> FinishPendingUpdate(const FileSystem::Path& checkpoint, const InPlaceTools& tools);

// Writes the change into the files of the checkpoint, under every name a tied tensor has there. `base` is the
// checkpoint at `path`, seen as change.layout_before(). REQUIRES: the lock is held, nothing is pending, the base is at
// change.state_before().
//
// Errors: kInvalidArgument when the change would alter the layout, or a file of weights is a link: others may use what
// it points to. After an error from the disk the update may be pending; the sentence says so.
Status UpdateInPlace(const FileSystem::Path& path, const Checkpoint& base, const StagedChange& change,
                     const InPlaceTools& tools);

}  // namespace weightwire
