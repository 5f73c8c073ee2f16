// Cloning a mirror: how a swap mirror (swap_mirror.h) begins its next copy.
#pragma once

#include "base/filesystem.h"
#include "base/result.h"

namespace weightwire {

// Clones the files of a mirror that no process changes into the empty directory `to`, and makes all of it durable
// except the name of `to`. The clone holds the same version. Of the mirror's own folder it gets what describes that
// version, and nothing that belongs to a change, such as a journal. Where the file system shares blocks (reflinks),
// this costs little.
Status CloneMirror(FileSystem& files, const FileSystem::Path& from, const FileSystem::Path& to);

}  // namespace weightwire
