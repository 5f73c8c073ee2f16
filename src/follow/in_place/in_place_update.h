// Changes a checkpoint in place. A crash at any moment leaves the old state, or a journal from which the new state is
// completed.
//
// The journal (journal.h) is stored beside the weights. It is complete, durable and under its own name before
// the first byte of the weights changes, and is removed once all of them are durable. FinishPendingUpdate replays it.
//
//   .weightwire-journal            of a directory
//   .weightwire-journal.<file>     of a single file
//   <either>.tmp                   an incomplete journal, without effect
//
// A mirror (follow/mirror/mirror.h) does not use this file: it says in its state which journal counts.
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

// All must outlive the call.
struct InPlaceTools {
  FileSystem& files;
  const Kernels& kernels;
  ThreadPool& pool;
};

// Returns the checkpoint whose update must be finished before this one can be read, if there is one: itself, or the
// directory that contains it.
Result<std::optional<FileSystem::Path>> PendingUpdate(FileSystem& files, const FileSystem::Path& checkpoint);

// Finishes the pending updates of the checkpoint, and removes incomplete journals. Returns whether an update was
// pending. REQUIRES: the lock (update_lock.h) is held.
//
// Errors: kMismatch if the weights hold bits that are neither old nor new, kCorrupt if the journal is damaged. Nothing
// is written in either case.
Result<bool> FinishPendingUpdate(const FileSystem::Path& checkpoint, const InPlaceTools& tools);

// Writes the change into the files of the checkpoint, under every name a tied tensor has there. `base` is the
// checkpoint at `path`, seen as change.layout_before(). REQUIRES: the lock is held, nothing is pending, the base is at
// change.state_before().
//
// Errors: kInvalidArgument if the change would alter the layout, or if a file of weights is a link, because others may
// use what it points to. After an error of the disk the update may be pending.
Status UpdateInPlace(const FileSystem::Path& path, const Checkpoint& base, const StagedChange& change,
                     const InPlaceTools& tools);

}  // namespace weightwire
