// An id: 128 random bits that name a run, a process, a follower, an anchor or a mark. Written as 32 lower-case hex
// digits, so it can stand in a key.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/random.h"

namespace weightwire {

struct Id {
  std::array<std::uint8_t, 16> bytes{};

  auto operator<=>(const Id&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees a 0 in it
};

[[nodiscard]] Id NewId(Random& random);
[[nodiscard]] std::string ToHex(const Id& id);
// Exactly 32 lower-case hex digits, or nothing.
[[nodiscard]] std::optional<Id> IdFromHex(std::string_view hex);

}  // namespace weightwire
