// Which version a directory holds, found by its digest.
#pragma once

#include "base/result.h"
#include "follow/mirror.h"
#include "log/run.h"

namespace weightwire {

// Makes the mirror the version whose bits its files have. Files that are no version of the run stay as they are until
// one is loaded over them. REQUIRES: the mirror holds nothing.
Status AdoptByDigest(const Run& run, Mirror& mirror);

}  // namespace weightwire
