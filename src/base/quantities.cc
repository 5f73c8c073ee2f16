#include "base/quantities.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace weightwire {
namespace {

// A hundred years; so nothing that is added to one overflows.
constexpr std::int64_t kMaxMilliseconds = std::int64_t{100} * 366 * 86'400'000;
// An exbibyte; so nothing that is added to one overflows.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;
constexpr int kMaxFractionDigits = 6;  // so that no product overflows

std::optional<std::int64_t> MillisecondsOfUnit(std::string_view unit) {
  if (unit == "ms") return 1;
  if (unit == "s" || unit.empty()) return 1'000;
  if (unit == "m") return 60'000;
  if (unit == "h") return 3'600'000;
  if (unit == "d") return 86'400'000;
  return std::nullopt;
}

std::optional<std::int64_t> BytesOfUnit(std::string_view unit) {
  if (unit == "B" || unit.empty()) return 1;
  if (unit == "KiB") return std::int64_t{1} << 10;
  if (unit == "MiB") return std::int64_t{1} << 20;
  if (unit == "GiB") return std::int64_t{1} << 30;
  if (unit == "TiB") return std::int64_t{1} << 40;
  if (unit == "KB" || unit == "kB") return 1'000;
  if (unit == "MB") return 1'000'000;
  if (unit == "GB") return 1'000'000'000;
  if (unit == "TB") return 1'000'000'000'000;
  return std::nullopt;
}

// A number of base units, or why the text is none.
struct Quantity {
  std::int64_t value = 0;
  bool is_valid = false;
  bool is_whole = true;  // false: not a whole number of base units
};

template <typename UnitFactor>
Quantity ParseQuantity(const std::string& text, std::int64_t limit, const UnitFactor& factor_of) {
  const char* const end = text.data() + text.size();
  std::int64_t whole = 0;
  auto [rest, error] = std::from_chars(text.data(), end, whole);
  if (error != std::errc{} || whole < 0) return {};
  std::int64_t fraction = 0;  // in units of 1 / parts
  std::int64_t parts = 1;
  if (rest != end && *rest == '.') {
    const char* const digits = ++rest;
    for (; rest != end && *rest >= '0' && *rest <= '9'; ++rest) {
      if (rest - digits == kMaxFractionDigits) return {};
      fraction = fraction * 10 + (*rest - '0');
      parts *= 10;
    }
    if (rest == digits) return {};
  }
  const std::optional<std::int64_t> factor = factor_of(std::string_view(rest, static_cast<std::size_t>(end - rest)));
  if (!factor.has_value() || whole >= limit / *factor) return {};
  const std::int64_t product = fraction * *factor;
  if (product % parts != 0) return {.value = 0, .is_valid = true, .is_whole = false};
  return {.value = whole * *factor + product / parts, .is_valid = true};
}

}  // namespace

Result<std::chrono::milliseconds> ParseDuration(const std::string& text) {
  const Quantity quantity = ParseQuantity(text, kMaxMilliseconds, MillisecondsOfUnit);
  if (quantity.is_valid && quantity.is_whole) return std::chrono::milliseconds(quantity.value);
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("'{}' is no duration{}; write for example 500ms, 0.5s, 15m, 24h or 7d", text,
                           quantity.is_valid ? " of whole milliseconds" : ""));
}

Result<std::uint64_t> ParseSize(const std::string& text) {
  const Quantity quantity = ParseQuantity(text, kMaxBytes, BytesOfUnit);
  if (quantity.is_valid && quantity.is_whole) return static_cast<std::uint64_t>(quantity.value);
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("'{}' is no size{}; write for example 256MiB, 1.5GB or a number of bytes", text,
                           quantity.is_valid ? " of whole bytes" : ""));
}

Result<bool> ParseFlag(const std::string& text) {
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  for (const char* const yes : {"1", "true", "yes", "on"}) {
    if (lower == yes) return true;
  }
  for (const char* const no : {"0", "false", "no", "off"}) {
    if (lower == no) return false;
  }
  return Error(ErrorCode::kInvalidArgument, fmt::format("'{}' is neither true nor false; write 1 or 0", text));
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
