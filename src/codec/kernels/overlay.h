// Units that a decoder sees instead of those in memory: the changes of versions that are staged and not yet written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "codec/format/units.h"

namespace weightwire {

// Changes of a stretch of units, such as a tile. A later list overrides an earlier one.
struct OverlaidUnits {
  const std::uint32_t* offsets = nullptr;  // ascending
  const std::uint8_t* new_units = nullptr;
  std::uint32_t count = 0;
  std::uint32_t shift = 0;  // offsets[k] + shift, modulo 2^32, is a unit of the stretch
  std::uint32_t next = 0;   // of the reader: the first one that it has not passed

  [[nodiscard]] std::uint32_t unit(std::uint32_t k) const { return offsets[k] + shift; }
};

// Prefetches the changes of a list from k on, as many as a range is likely to have. Lanes read hundreds of lists in
// turn, which is more than hardware prefetchers follow.
template <typename Unit>
void PrefetchChanges(const OverlaidUnits& list, std::uint32_t k, std::uint32_t likely) {
  constexpr std::uint32_t kLineBytes = 64;
  constexpr std::uint32_t kOffsets = kLineBytes / sizeof(std::uint32_t);
  constexpr std::uint32_t kNewUnits = kLineBytes / sizeof(Unit);
  const auto end =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(list.count, std::uint64_t{k} + likely + kOffsets));
  for (std::uint32_t at = k; at < end; at += kOffsets) __builtin_prefetch(list.offsets + at, 0, 2);
  for (std::uint32_t at = k; at < end; at += kNewUnits) {
    __builtin_prefetch(list.new_units + std::size_t{at} * sizeof(Unit), 0, 2);
  }
}

// Writes the changes in units [begin, end) over copies of these units. Ranges ascend: the next one begins at `end`,
// unless StepBack was called, or `begin` is 0.
template <typename Unit>
void Overlay(std::span<OverlaidUnits> lists, std::uint32_t begin, std::uint32_t end, std::uint8_t* units) {
  for (OverlaidUnits& list : lists) {
    const std::uint32_t* const offsets = list.offsets;
    const std::uint8_t* const new_units = list.new_units;
    const std::uint32_t count = list.count;
    const std::uint32_t shift = list.shift;
    const std::uint32_t first = begin == 0 ? 0 : list.next;
    std::uint32_t k = first;
    for (; k < count && offsets[k] + shift < end; ++k) {
      StoreUnit<Unit>(units, offsets[k] + shift - begin, LoadUnit<Unit>(new_units, k));
    }
    list.next = k;
    PrefetchChanges<Unit>(list, k, k - first);
  }
}

// Makes the next range begin at unit `end`, which is before the last one's.
inline void StepBack(std::span<OverlaidUnits> lists, std::uint32_t end) {
  for (OverlaidUnits& list : lists) {
    while (list.next != 0 && list.unit(list.next - 1) >= end) --list.next;
  }
}

// The unit that the lists show in place of `unit`, whose bits in memory are given.
template <typename Unit>
[[nodiscard]] Unit OverlaidUnit(std::span<const OverlaidUnits> lists, std::uint32_t unit, Unit bits) {
  for (std::size_t i = lists.size(); i-- > 0;) {
    const OverlaidUnits& list = lists[i];
    std::uint32_t begin = 0;
    std::uint32_t end = list.count;
    while (begin < end) {
      const std::uint32_t middle = begin + (end - begin) / 2;
      if (list.unit(middle) < unit) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    if (begin < list.count && list.unit(begin) == unit) return LoadUnit<Unit>(list.new_units, begin);
  }
  return bits;
}

// Replaces those of the units at `positions`, which ascend, also from one call to the next.
template <typename Unit>
void OverlayAt(std::span<OverlaidUnits> lists, std::span<const std::uint32_t> positions, std::uint8_t* units) {
  for (OverlaidUnits& list : lists) {
    std::uint32_t k = list.next;
    for (std::size_t i = 0; i < positions.size() && k < list.count; ++i) {
      while (k < list.count && list.unit(k) < positions[i]) ++k;
      if (k < list.count && list.unit(k) == positions[i]) StoreUnit<Unit>(units, i, LoadUnit<Unit>(list.new_units, k));
    }
    list.next = k;
  }
}

}  // namespace weightwire
