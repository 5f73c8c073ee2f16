// The id of the follower that keeps a mirror: made once, kept beside the mirror's state, so that the lease stays the
// same over restarts.
#pragma once

#include "base/filesystem.h"
#include "base/random.h"
#include "base/result.h"
#include "log/id.h"

namespace weightwire {

// REQUIRES: the mirror is open, so that nobody else makes one.
Result<Id> FollowerIdOf(FileSystem& files, const FileSystem::Path& mirror, Random& random);

// "host:directory", printable, as leases show it.
[[nodiscard]] std::string DefaultFollowerName(const FileSystem::Path& mirror);

}  // namespace weightwire
