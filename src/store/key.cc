#include "store/key.h"

#include <fmt/format.h>

#include <algorithm>

namespace weightwire {
namespace {

bool IsKeyCharacter(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

// A key may come from a bucket: what is quoted is short and cannot write to a terminal.
std::string Quoted(std::string_view text) {
  constexpr std::size_t kMaxQuotedBytes = 80;
  std::string quoted = "\"";
  for (const char c : text.substr(0, kMaxQuotedBytes)) {
    if (IsKeyCharacter(c) || c == '/' || c == ' ') {
      quoted += c;
    } else {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return quoted + (text.size() > kMaxQuotedBytes ? "…\"" : "\"");
}

Error Refuse(std::string_view text, std::string_view why) {
  return {ErrorCode::kInvalidArgument, fmt::format("{} is not a valid key: {}", Quoted(text), why)};
}

Status CheckLength(std::string_view text) {
  if (text.size() <= kMaxKeyBytes) return Ok();
  return Refuse(text, fmt::format("it has {} bytes and the limit is {}", text.size(), kMaxKeyBytes));
}

// REQUIRES: `segment` is a whole segment of `text`.
Status CheckSegment(std::string_view text, std::string_view segment, bool first) {
  if (segment.empty()) return Refuse(text, "a segment between slashes is empty");
  if (segment == "." || segment == "..") return Refuse(text, R"("." and ".." cannot be segments)");
  if (first && segment == kReservedSegment) return Refuse(text, "\".weightwire\" is kept for the store itself");
  return Ok();
}

Status CheckCharacters(std::string_view text, std::string_view segment) {
  if (segment.size() > kMaxKeySegmentBytes) {
    return Refuse(text, fmt::format("a segment has more than {} bytes", kMaxKeySegmentBytes));
  }
  if (!std::all_of(segment.begin(), segment.end(), IsKeyCharacter)) {
    return Refuse(text, R"(only A-Z, a-z, 0-9, ".", "_", "-" and "/" are allowed)");
  }
  return Ok();
}

enum class Last : std::uint8_t { kWhole, kPartial };

Status Check(std::string_view text, Last last) {
  WW_RETURN_IF_ERROR(CheckLength(text));
  std::size_t start = 0;
  while (true) {
    const std::size_t slash = text.find('/', start);
    const bool is_last = slash == std::string_view::npos;
    const std::string_view segment = text.substr(start, is_last ? slash : slash - start);
    WW_RETURN_IF_ERROR(CheckCharacters(text, segment));
    if (!is_last || last == Last::kWhole) WW_RETURN_IF_ERROR(CheckSegment(text, segment, start == 0));
    if (is_last) return Ok();
    start = slash + 1;
  }
}

}  // namespace

Status CheckKey(std::string_view key) { return Check(key, Last::kWhole); }

Status CheckKeyPrefix(std::string_view prefix) { return Check(prefix, Last::kPartial); }

}  // namespace weightwire
