// How long ranks wait before they try again what failed in passing: twice as long each time, up to 16 s.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace weightwire {

[[nodiscard]] inline MonotonicTime RetryPause(int attempts) {
  constexpr MonotonicTime kFirst = std::chrono::milliseconds(500);
  constexpr int kMostDoublings = 5;
  return kFirst * (1 << std::min(attempts, kMostDoublings));
}

}  // namespace weightwire
