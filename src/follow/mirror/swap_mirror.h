// A mirror for readers that know nothing of us: a link that leads to a whole checkpoint, and is replaced at one stroke.
//
//   DIR/current -> copies/N        a version, whole; what readers open
//   DIR/copies/N/                  a mirror (mirror.h) that is not written to any more once the link leads to it
//   DIR/.weightwire/swap           says that DIR is of this kind
//   DIR/.weightwire/follower.lock  held by the follower that keeps it
//
// A newer version is made in a copy of its own: the files of the current one cloned, which costs next to nothing where
// the file system shares their blocks (reflinks) and a full copy elsewhere; the change written there; all of it on the
// disk; then the link is replaced. The copy before stays until the next version is begun. So whoever has opened the
// directory that the link leads to reads one version, and nothing is ever written under its feet; if it reads for
// longer than a version lasts, files that it has open stay, and others are gone. Nothing is locked for readers.
//
// A crash at any instant leaves the link where it was, or at the new copy, which is complete by then. Copies
// that nothing leads to are removed when the next version is begun.
#pragma once

#include <memory>

#include "follow/mirror/mirror.h"

namespace weightwire {

// As OpenMirror. Undo leads back to the copy before, as long as it is there: after a load and a change of the layout
// too. A directory cannot be adopted.
Result<std::unique_ptr<Mirror>> OpenSwapMirror(FileSystem& files, const FileSystem::Path& directory,
                                               const MirrorOptions& options, const Kernels& kernels, ThreadPool& pool);

// What readers open, below the directory.
inline constexpr std::string_view kSwapLink = "current";

}  // namespace weightwire
