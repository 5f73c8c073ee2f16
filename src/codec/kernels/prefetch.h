// Memory that will be read soon, asked for before.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weightwire {

// Has these bytes brought into the second cache, for ranges that lie far from each other, where no hardware foresees
// them: each is asked for while the one before is worked on.
inline void Prefetch(const std::uint8_t* bytes, std::size_t size) {
  constexpr std::size_t kLineBytes = 64;
  for (std::size_t at = 0; at < size; at += kLineBytes) __builtin_prefetch(bytes + at, 0, 2);
}

}  // namespace weightwire
