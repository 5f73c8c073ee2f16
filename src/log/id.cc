#include "log/id.h"

#include "base/bytes.h"
#include "base/sha256.h"

namespace weightwire {

Id NewId(Random& random) {
  Id id;
  StoreU64(id.bytes.data(), random.Next());
  StoreU64(id.bytes.data() + 8, random.Next());
  return id;
}

std::string ToHex(const Id& id) { return ToHex(std::span<const std::uint8_t>(id.bytes)); }

std::optional<Id> IdFromHex(std::string_view hex) {
  Id id;
  if (hex.size() != 2 * id.bytes.size()) return std::nullopt;
  for (std::size_t i = 0; i < hex.size(); ++i) {
    const char c = hex[i];
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) return std::nullopt;
    const int value = digit ? c - '0' : c - 'a' + 10;
    id.bytes[i / 2] = static_cast<std::uint8_t>(id.bytes[i / 2] * 16 + value);
  }
  return id;
}

}  // namespace weightwire
