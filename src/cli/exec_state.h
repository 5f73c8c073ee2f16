// The version for which the command of `follow --exec` last succeeded. It is kept beside the mirror's state, so that
// the next start runs the command again if it failed, or if a crash came before it.
#pragma once

#include "base/filesystem.h"
#include "base/result.h"
#include "follow/targets/target.h"

namespace weightwire {

// Whether the command has succeeded for that version. False if that is unknown: running the command again is harmless.
[[nodiscard]] bool ExecSucceeded(FileSystem& files, const FileSystem::Path& mirror, const Held& held);

// REQUIRES: the mirror is open, so that nobody else writes it.
Status RememberExecSuccess(FileSystem& files, const FileSystem::Path& mirror, const Held& held);

}  // namespace weightwire
