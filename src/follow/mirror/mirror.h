// A mirror: a directory with a Hugging Face checkpoint that holds a version of a run and moves to others.
//
//   DIR/…                          the checkpoint, which any tool can load
//   DIR/.weightwire/state.json     what it holds (mirror_state.h)
//   DIR/.weightwire/follower.lock  held by the follower that keeps it
//   DIR/.weightwire/content.lock   held exclusively while files change; readers hold it shared (reader.h)
//   DIR/.weightwire/journal        the last change: positions, old and new bits (journal.h)
//   DIR/.weightwire/journal.next, state.writing.json, state.written.json: for a change that is about to be written
//   DIR/.weightwire/incoming/      files that are loaded, before they take their places
//   DIR/.weightwire/replacement    which ones do (replacement.h)
//   DIR/.weightwire/files.json     names of the files that a load has put there
//   DIR/.weightwire/layout.<hash>.json, digests.<state>
//
// A crash at any instant leaves a mirror that is the old or the new version once it has been opened again. What makes
// it so, in order: the journal is on the disk; state.json says on the disk that the files are being written; the files
// are written; state.json says that they are the new version. The last two may get to the disk later: until state.json
// says that the weights have ("unsynced" is null), the journal stays, and opening writes its bits once more. So at most
// one change is not on the disk, and the next one waits for it (Sync).
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
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
  // Take a directory that has files and is not a mirror yet.
  bool adopt = false;
  // Digest every tensor in full when opening, instead of believing what was written down: others may have changed the
  // files meanwhile. Files that do not have the digest of the version held are damage.
  bool check = false;
  // Load files that could run as code (spec/PROTOCOL.md, "Anchors").
  bool carry_code = false;
};

// A target (target.h) on a disk. Every call may leave it unusable when the disk fails: then each says so, and Recover,
// or opening it again, finishes what was begun. An error that leaves nothing in doubt, such as a full disk before a
// name has changed, only means to try again. Apply, Undo and a load's Commit are kUnavailable while readers hold the
// content; nothing has happened then, and trying again costs little.
class Mirror : public Target {
 public:
  // Why the files cannot be used, though there are some: only a load helps. held() is nothing then, and readers are
  // refused.
  [[nodiscard]] virtual const std::optional<Error>& damage() const = 0;

  // Digests every tensor in full; kCorrupt names one that is not as it should be. REQUIRES: held().
  [[nodiscard]] virtual Status Check() = 0;

  // Returns once the weights of the last change are on the disk. RunMaintenance() does it too.
  virtual Status Sync() = 0;
  [[nodiscard]] virtual bool synced() const = 0;

  // What Undo leads to, while it is possible: not after a load, a change of the layout, or another undo.
  [[nodiscard]] virtual std::optional<Held> undo_target() const = 0;

  // The state digest of the files that lie there, seen as this layout. kNotFound when there is no checkpoint.
  virtual Result<Sha256Digest> DigestAs(const Layout& layout) = 0;
  // They are that version. kMismatch when their digest says otherwise. REQUIRES: not held().
  virtual Status Adopt(const Held& held, const Layout& layout) = 0;
};

// Opens a mirror, makes one where there is nothing, and finishes what a crash has left. Everything passed must outlive
// it. Errors: kUnavailable when another follower has it, or readers hold what must be finished; kInvalidArgument when
// the directory holds something else.
Result<std::unique_ptr<Mirror>> OpenMirror(FileSystem& files, const FileSystem::Path& directory,
                                           const MirrorOptions& options, const Kernels& kernels, ThreadPool& pool);

}  // namespace weightwire
