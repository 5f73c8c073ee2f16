// Which version a mirror's user was told of last, by the command of `follow --exec`. Kept beside the mirror's state, so
// that a command that failed, or that a crash came before, is run at the next start.
#pragma once

#include "base/filesystem.h"
#include "base/result.h"
#include "follow/targets/target.h"

namespace weightwire {

// Whether the command has ended well for that version. Not if nothing is known: running it once more is harmless.
[[nodiscard]] bool WasTold(FileSystem& files, const FileSystem::Path& mirror, const Held& held);

// REQUIRES: the mirror is open, so that nobody else writes it.
Status RememberTold(FileSystem& files, const FileSystem::Path& mirror, const Held& held);

}  // namespace weightwire
