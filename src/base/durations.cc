#include "base/durations.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace weightwire {
namespace {

// A hundred years; so nothing that is added to one overflows.
constexpr std::int64_t kMaxMilliseconds = std::int64_t{100} * 366 * 86'400'000;
// Keeps the digits times any unit below 2^63.
constexpr int kMaxFractionDigits = 9;

std::int64_t MillisecondsOfUnit(std::string_view unit) {
  if (unit == "ms") return 1;
  if (unit == "s") return 1'000;
  if (unit == "m") return 60'000;
  if (unit == "h") return 3'600'000;
  if (unit == "d") return 86'400'000;
  return 0;
}

}  // namespace

Result<std::chrono::milliseconds> ParseDuration(const std::string& text) {
  const auto invalid = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("'{}' is no duration{}; write for example 500ms, 0.5s, 15m, 24h or 7d", text, why));
  };
  const char* const end = text.data() + text.size();
  std::int64_t whole = 0;
  auto [rest, error] = std::from_chars(text.data(), end, whole);
  if (error != std::errc{} || whole < 0) return invalid("");
  std::int64_t fraction = 0;  // in units of 1 / parts
  std::int64_t parts = 1;
  if (rest != end && *rest == '.') {
    const char* const digits = ++rest;
    for (; rest != end && *rest >= '0' && *rest <= '9'; ++rest) {
      if (rest - digits == kMaxFractionDigits) return invalid("");
      fraction = fraction * 10 + (*rest - '0');
      parts *= 10;
    }
    if (rest == digits) return invalid("");
  }
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  const std::int64_t factor = unit.empty() && whole == 0 && parts == 1 ? 1 : MillisecondsOfUnit(unit);
  if (factor == 0 || whole >= kMaxMilliseconds / factor) return invalid("");
  if (fraction * factor % parts != 0) return invalid(" of whole milliseconds");
  return std::chrono::milliseconds(whole * factor + fraction * factor / parts);
}

std::string HumanDuration(std::chrono::seconds duration) {
  const std::int64_t all = std::max<std::int64_t>(duration.count(), 0);
  const auto pair = [](std::int64_t large, const char* large_unit, std::int64_t small, const char* small_unit) {
    if (small == 0) return fmt::format("{} {}", large, large_unit);
    return fmt::format("{} {} {} {}", large, large_unit, small, small_unit);
  };
  if (all < 60) return fmt::format("{} s", all);
  if (all < 3'600) return pair(all / 60, "min", all % 60, "s");
  if (all < 86'400) return pair(all / 3'600, "h", all % 3'600 / 60, "min");
  return pair(all / 86'400, "d", all % 86'400 / 3'600, "h");
}

}  // namespace weightwire
