// A mirror: a directory with a Hugging Face checkpoint that holds a version of a run and moves to others.
//
//   DIR/…                          the checkpoint, which any tool can load
//   DIR/.weightwire/state.json     what it holds (mirror_state.h)
//   DIR/.weightwire/follower.lock  locked by the follower that keeps the mirror
//   DIR/.weightwire/content.lock   locked exclusively while files change; readers lock it shared (reader.h)
//   DIR/.weightwire/journal        the last change: positions, old and new bits (follow/in_place/journal.h)
//   DIR/.weightwire/journal.next, state.writing.json, state.written.json: for a change that is about to be written
//   DIR/.weightwire/incoming/      loaded files, before they take their places
//   DIR/.weightwire/replacement    the list of files that take their places (replacement.h)
//   DIR/.weightwire/files.json     names of the files that a load has placed
//   DIR/.weightwire/layout.<hash>.json, digests.<state>
//
// Others may keep files of their own in DIR/.weightwire; the mirror removes only those that it makes itself.
//
// A crash at any moment leaves a mirror that holds the old or the new version once it has been opened again, because a
// change is written in this order: the journal is durable; state.json is durable and says that the files are being
// written; the files are written; state.json says that they are the new version. The last two become durable later.
// Until state.json says that the weights are durable ("unsynced" is null), the journal stays and opening replays it. So
// at most one change is not durable, and the next change waits for it (Sync).
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "base/threads.h"
#include "codec/decode/staged_change.h"
#include "codec/decode/state_view.h"
#include "codec/kernels/kernels.h"
#include "follow/targets/target.h"
#include "tensor/layout.h"

namespace weightwire {

struct MirrorOptions {
  // Take over a directory that has files and is not a mirror yet.
  bool adopt = false;
  // Digest every tensor in full when opening, instead of trusting the saved digests, because other programs may have
  // changed the files. Files that do not have the digest of the version held are damage.
  bool check = false;
  // Load files that could run as code (spec/PROTOCOL.md, "Anchors").
  bool include_code = false;
  // Called with true when content.lock is taken, so that readers have to wait, and with false after it is released.
  std::function<void(bool)> content_locked = nullptr;
};

// A target (target.h) on a disk. If the disk fails during a call, the outcome may be unknown. Then every further call
// fails until Recover, or opening the mirror again, has completed the interrupted change. After an error with a known
// outcome, such as a full disk before a name has changed, the call can simply be repeated. Apply, Undo and a load's
// Commit return kUnavailable while readers hold the content; nothing has happened then, and trying again costs little.
class Mirror : public Target {
 public:
  // Why the files that are there cannot be used. Only a load helps. held() is nullopt then, and readers are refused.
  [[nodiscard]] virtual const std::optional<Error>& damage() const = 0;

  // Returns once the weights of the last change are durable. RunMaintenance() calls it, too.
  virtual Status Sync() = 0;
  [[nodiscard]] virtual bool synced() const = 0;

  // The version that Undo leads to. nullopt if Undo is impossible: after a load, a change of the layout, or an undo.
  [[nodiscard]] virtual std::optional<Held> undo_target() const = 0;

  // Computes the state digest of the files in the directory, seen as this layout. kNotFound if there is no checkpoint.
  virtual Result<Sha256Digest> DigestAs(const Layout& layout) = 0;
  // Records that the files in the directory are version `held`. kMismatch if their digest differs. REQUIRES: not
  // held().
  virtual Status Adopt(const Held& held, const Layout& layout) = 0;
};

// Opens a mirror, or creates one in an empty directory, and completes a change that a crash interrupted. The arguments
// must outlive it. Errors: kUnavailable if another follower keeps the mirror, or if readers hold files that must be
// completed; kInvalidArgument if the directory contains something else.
Result<std::unique_ptr<Mirror>> OpenMirror(FileSystem& files, const FileSystem::Path& directory,
                                           const MirrorOptions& options, const Kernels& kernels, ThreadPool& pool);

}  // namespace weightwire
