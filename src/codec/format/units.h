// Typed access to units in unaligned byte memory, and dispatch from a width in bytes to a type.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace weightwire {

template <typename Unit>
Unit LoadUnit(const std::uint8_t* units, std::uint64_t index) {
  Unit unit;
  std::memcpy(&unit, units + index * sizeof(Unit), sizeof(Unit));
  return unit;
}

template <typename Unit>
void StoreUnit(std::uint8_t* units, std::uint64_t index, Unit unit) {
  std::memcpy(units + index * sizeof(Unit), &unit, sizeof(Unit));
}

// Calls function.template operator()<Unit>() for the unsigned type of that width.
template <typename Function>
auto WithUnit(int unit_bytes, Function&& function) {
  switch (unit_bytes) {
    case 1:
      return function.template operator()<std::uint8_t>();
    case 2:
      return function.template operator()<std::uint16_t>();
    case 4:
      return function.template operator()<std::uint32_t>();
    default:
      WW_CHECK(unit_bytes == 8);
      return function.template operator()<std::uint64_t>();
  }
}

}  // namespace weightwire
