#include "cli/durations.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace weightwire {
namespace {

// A hundred years; so nothing that is added to one overflows.
constexpr std::int64_t kMaxMilliseconds = std::int64_t{100} * 366 * 86'400'000;

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
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  const std::int64_t factor = unit.empty() && number == 0 ? 1 : MillisecondsOfUnit(unit);
  if (error != std::errc{} || number < 0 || factor == 0 || number > kMaxMilliseconds / factor) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("'{}' is no duration; write for example 30s, 15m, 24h or 7d", text));
  }
  return std::chrono::milliseconds(number * factor);
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
