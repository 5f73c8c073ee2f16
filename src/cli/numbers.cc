#include "cli/numbers.h"

#include <fmt/format.h>

#include <charconv>

namespace weightwire {

Result<std::uint64_t> ParseNumber(const std::string& text) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || rest != end) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("'{}' is no whole number from 0 to 18446744073709551615", text));
  }
  return number;
}

}  // namespace weightwire
