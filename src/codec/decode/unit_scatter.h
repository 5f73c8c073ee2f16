// Units here and there in memory: written, or compared.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/format/units.h"

namespace weightwire {

// Asks for the cache lines of a hundred units or so, then calls function(k, unit) for the hundred before. To ask for
// one and use one in turn is slower, and so is asking for lines to write, which waits where asking for them into the
// second level does not.
template <typename Unit, typename Function>
void ForUnitsAhead(std::span<const std::uint32_t> offsets, const std::uint8_t* units, Function&& function) {
  constexpr std::size_t kAskedAtOnce = 128;
  const std::size_t count = offsets.size();
  for (std::size_t asked = 0; asked < count + kAskedAtOnce; asked += kAskedAtOnce) {
    for (std::size_t k = asked; k < std::min(asked + kAskedAtOnce, count); ++k) {
      __builtin_prefetch(units + std::size_t{offsets[k]} * sizeof(Unit), 0, 2);
    }
    if (asked == 0) continue;
    for (std::size_t k = asked - kAskedAtOnce; k < std::min(asked, count); ++k) function(k, offsets[k]);
  }
}

// Writes bits[k] to units[offsets[k]].
template <typename Unit>
void WriteUnits(std::span<const std::uint32_t> offsets, const std::uint8_t* bits, std::uint8_t* units) {
  ForUnitsAhead<Unit>(offsets, units, [&](std::size_t k, std::uint32_t unit) {
    StoreUnit<Unit>(units, unit, LoadUnit<Unit>(bits, k));
  });
}

// Whether units[offsets[k]] is bits[k] for all k.
template <typename Unit>
[[nodiscard]] bool HaveBits(std::span<const std::uint32_t> offsets, const std::uint8_t* bits,
                            const std::uint8_t* units) {
  Unit difference = 0;
  ForUnitsAhead<Unit>(offsets, units, [&](std::size_t k, std::uint32_t unit) {
    difference = static_cast<Unit>(difference | (LoadUnit<Unit>(units, unit) ^ LoadUnit<Unit>(bits, k)));
  });
  return difference == 0;
}

}  // namespace weightwire
