#include "cli/run_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace weightwire {

Result<RunAddress> ParseRunAddress(const std::string& text) {
  const std::size_t at = text.rfind('@');
  if (at == std::string::npos || at + 1 == text.size()) return RunAddress{text, std::nullopt};
  const std::string digits = text.substr(at + 1);
  if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return RunAddress{text, std::nullopt};
  }
  Version version = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), version);
  if (error != std::errc{}) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("{}: there is no version {}", text, digits));
  }
  return RunAddress{text.substr(0, at), version};
}

Result<OpenedRun> OpenRun(const std::string& location, const CommandTools& tools) {
  WW_TRY(std::unique_ptr<Store> store, tools.open_store(location, StoreRetries::kStore));
  WW_TRY(Run run, Run::Open(*store));
  return OpenedRun{std::move(store), std::move(run)};
}

}  // namespace weightwire
