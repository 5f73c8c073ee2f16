// What must be known about a store before a run is made in it.
#pragma once

#include <string_view>

#include "base/random.h"
#include "store/store.h"

namespace weightwire {

inline constexpr std::string_view kProbesPrefix = "probe/";

// Whether the store refuses the second of two PutIfAbsent calls, tried on a fresh object under kProbesPrefix, which is
// removed again. False: two writers could not be told apart there.
Result<bool> HonoursPutIfAbsent(Store& store, Random& random);

}  // namespace weightwire
