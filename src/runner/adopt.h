// Which version of a run a target holds already, found by its digest: then it need not be loaded.
#pragma once

#include "base/result.h"
#include "follow/mirror/mirror.h"
#include "follow/targets/array_target.h"
#include "log/run.h"

namespace weightwire {

// Makes the target hold the version whose bits it has. One that has no version's bits stays as it is until one is
// loaded over it. REQUIRES: the target holds nothing.
//
// A directory without a checkpoint, or with one of another layout, has no version's bits. Arrays of another layout are
// an error: nothing can be loaded over them.
Status AdoptByDigest(const Run& run, Mirror& mirror);
Status AdoptByDigest(const Run& run, ArrayTarget& arrays);

}  // namespace weightwire
