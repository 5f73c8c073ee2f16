// Bugs that a test plants at the seams of a world (its disks and its bucket), so that product code has none.
#pragma once

#include "follow/mirror_faults.h"
#include "log/lying_store.h"

namespace weightwire::sim {

struct Planted {
  weightwire::testing::MirrorFault mirror = weightwire::testing::MirrorFault::kNone;  // in every mirror's disk
  weightwire::testing::Lie gc_store = weightwire::testing::Lie::kNone;
  weightwire::testing::Lie follower_stores = weightwire::testing::Lie::kNone;
};

}  // namespace weightwire::sim
