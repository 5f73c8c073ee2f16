// The earlier of two times, either of which may never come.
#pragma once

#include <algorithm>
#include <optional>

#include "base/clock.h"

namespace weightwire {

[[nodiscard]] inline std::optional<MonotonicTime> Sooner(std::optional<MonotonicTime> a,
                                                         std::optional<MonotonicTime> b) {
  return a.has_value() && b.has_value() ? std::min(*a, *b) : (a.has_value() ? a : b);
}

}  // namespace weightwire
