// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace weightwire {

// "1,234,567".
[[nodiscard]] std::string WithCommas(std::uint64_t number);

// "123 B", "1.21 MiB": three digits that matter.
[[nodiscard]] std::string HumanBytes(std::uint64_t bytes);

// "1.20 %" of a whole; "–" when there is no whole.
[[nodiscard]] std::string Percent(std::uint64_t part, std::uint64_t whole);

// "0.812": a ratio with three places; "–" when there is nothing to divide by.
[[nodiscard]] std::string Ratio(double dividend, double divisor);

// "812 µs", "18.1 ms", "2.30 s".
[[nodiscard]] std::string HumanSeconds(double seconds);

}  // namespace weightwire
