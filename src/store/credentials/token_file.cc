#include "store/credentials/token_file.h"

#include <fmt/format.h>

#include "base/file.h"

namespace weightwire {

Result<std::string> ReadTokenFile(const std::filesystem::path& path) {
  constexpr std::uint64_t kMaxBytes = 64 << 10;
  const auto file = File::OpenForRead(path);
  if (!file.ok()) return Error(ErrorCode::kRefused, file.error().message());
  WW_TRY(const std::uint64_t size, file.value().size());
  if (size > kMaxBytes) return Error(ErrorCode::kLimit, fmt::format("{} is too large for a token", path.string()));
  std::string token(size, 0);
  WW_RETURN_IF_ERROR(file.value().ReadAt(0, {reinterpret_cast<std::uint8_t*>(token.data()), token.size()}));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  return token;
}

}  // namespace weightwire
