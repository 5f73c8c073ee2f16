// A version rebuilt in memory from nothing but the bucket: for a publisher that has lost its base, for `verify`, and
// for whoever wants the bits once.
#pragma once

#include <memory>

#include "base/result.h"
#include "follow/follower.h"
#include "follow/targets/memory_target.h"

namespace weightwire {

// Brings `target` to exactly `version`, from what it holds or from an anchor, whichever is cheaper. Without a pause of
// its own it tries a few times more what may pass; what does not is the caller's to wait for: calling again goes on
// with what the target holds.
Status Rebuild(const Run& run, Version version, Target& target, const Id& id, const FollowerOptions& options,
               const FollowerTools& tools);

}  // namespace weightwire
