// Random table sets that can code every step, for tests of the kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "codec/format/tables.h"
#include "codec/models.h"

namespace weightwire::testing {

// For units of `width` bytes.
inline TableSet RandomTables(Random& random, int width, bool uniform) {
  TableSet set;
  set.unit_bits = 8 * width;
  set.uniform = uniform;
  set.rule.bits = static_cast<std::uint8_t>(Below(random, std::min(9, 8 * width)));
  set.rule.shift = static_cast<std::uint8_t>(Below(random, static_cast<std::uint64_t>(8 * width - set.rule.bits)));
  set.rule.lowest = static_cast<std::uint8_t>(Below(random, 2) == 0 ? 0 : Below(random, 256));
  set.rule.order = Below(random, 2) == 0 ? Order::kInteger : Order::kSignMagnitude;
  // From changes everywhere to hardly any, in one set or over the classes.
  const std::uint64_t center = Below(random, kMaxRateCode + 1);
  for (auto& code : set.rate_codes) {
    code = static_cast<std::uint8_t>(Below(random, 2) == 0 ? center : Below(random, kMaxRateCode + 1));
  }
  if (uniform) set.rate_codes.fill(static_cast<std::uint8_t>(center));
  for (SymbolWeights& weights : set.symbols) {
    weights.tail = true;
    weights.codes.assign(1 + Below(random, 6), 100);
  }
  return set;
}

}  // namespace weightwire::testing
