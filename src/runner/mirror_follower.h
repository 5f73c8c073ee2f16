// The follower of a mirror, for all programs that keep one: `weightwire follow`, and followers in Python.
#pragma once

#include <memory>
#include <string_view>

#include "base/filesystem.h"
#include "base/random.h"
#include "base/result.h"
#include "follow/follower.h"
#include "follow/mirror/mirror.h"
#include "follow/targets/array_target.h"
#include "log/run.h"

namespace weightwire {

// Makes a target that holds nothing hold the version whose bits it has, found by its digest, so that the version need
// not be loaded. A target that has no version's bits stays unchanged until one is loaded over it.
//
// A directory without a checkpoint, or with one of another layout, has no version's bits; nor has a damaged mirror.
// Arrays of another layout are an error, because nothing can be loaded over them.
Status AdoptByDigest(const Run& run, Mirror& mirror);
Status AdoptByDigest(const Run& run, ArrayTarget& arrays);

// Refuses a mirror inside the directory of its own run, or a run inside the directory of its mirror: `run` is as
// users write it.
Status CheckApart(std::string_view run, const FileSystem::Path& directory);

// Makes the follower that keeps the open mirror in `directory`. Its id is made once and kept beside the mirror's state,
// so that the lease stays the same over restarts. Without a name it is called "host:directory". Fetches with several
// threads. All arguments but the options must outlive the follower, except `run`, `files` and `random`.
Result<std::unique_ptr<Follower>> MakeMirrorFollower(const Run& run, Mirror& mirror, const FileSystem::Path& directory,
                                                     FollowerOptions options, const FollowerTools& tools,
                                                     FileSystem& files, Random& random);

}  // namespace weightwire
