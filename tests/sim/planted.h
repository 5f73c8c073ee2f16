// Bugs that a test plants at the seams of a world (its disks and its bucket), so that product code has none.
#pragma once

#include "follow/mirror_faults.h"

namespace weightwire::sim {

struct Planted {
  // Planted in the disk below every mirror.
  weightwire::testing::MirrorFault mirror = weightwire::testing::MirrorFault::kNone;
};

}  // namespace weightwire::sim
