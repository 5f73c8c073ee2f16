// A mirror for readers that do not know weightwire: a link to a complete checkpoint, which is replaced atomically.
//
//   DIR/current -> copies/N        a version, whole; what readers open
//   DIR/copies/N/                  a mirror (mirror.h) that is never changed after the link leads to it
//   DIR/.weightwire/swap           marks DIR as a swap mirror
//   DIR/.weightwire/follower.lock  locked by the follower that keeps it
//
// Each version gets a copy of its own: clone the files of the current copy, write the change there,
// make all of it durable, then replace the link. The previous copy stays until the next version is begun. So a reader
// that has opened the directory behind the link reads one version, and no file changes while it reads. If it reads for
// longer than a version lasts, files that it has open stay, and others are deleted, unless it locks the copy
// (reader.h): a copy that is locked stays. Other readers need no lock.
//
// A crash at any moment leaves the old link, or a link to the new copy, which is complete by then. Copies without a
// link are removed when the next version is begun.
#pragma once

#include <memory>

#include "follow/mirror/mirror.h"

namespace weightwire {

// Like OpenMirror. Undo returns to the previous copy while it exists, also after a load or a change of the layout. A
// directory cannot be adopted.
Result<std::unique_ptr<Mirror>> OpenSwapMirror(FileSystem& files, const FileSystem::Path& directory,
                                               const MirrorOptions& options, const Kernels& kernels, ThreadPool& pool);

// The link that readers open, in the directory.
inline constexpr std::string_view kSwapLink = "current";

}  // namespace weightwire
