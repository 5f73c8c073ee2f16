#include "store/http/range_answer.h"

#include <fmt/format.h>

#include <optional>

#include "store/http/decimal.h"

namespace weightwire {
namespace {

// The size behind the "/" of "bytes */1234".
std::optional<std::uint64_t> WholeSize(std::string_view range) {
  const std::size_t slash = range.rfind('/');
  if (slash == std::string_view::npos) return {};
  const std::string_view text = range.substr(slash + 1);
  return ParseDecimal(text);
}

}  // namespace

Status CheckRangeAnswer(const Store& store, std::string_view key, std::uint64_t offset, std::uint64_t size,
                        const Result<HttpAnswer>& result, const std::function<Error(const HttpAnswer&)>& refusal) {
  if (!result.ok() && result.error().code() == ErrorCode::kLimit) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("cannot read {} in {}: more bytes came than were asked for", key, store.Name()));
  }
  if (!result.ok()) return result.error();
  const HttpAnswer& answer = result.value();
  const std::string_view range = answer.Header("content-range");
  if (answer.status == 416) {
    if (const auto whole = WholeSize(range)) return ObjectEndsEarly(key, store, offset + size, *whole);
    return Error(ErrorCode::kCorrupt,
                 fmt::format("object {} in {} is damaged: it ends before byte {}", key, store.Name(), offset + size));
  }
  if (answer.status != 206 && answer.status != 200) return refusal(answer);
  // A server may ignore the range; then only the whole object will do.
  const bool right =
      answer.status == 206 ? range.empty() || range.starts_with(fmt::format("bytes {}-", offset)) : offset == 0;
  if (!right) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("cannot read {} in {}: other bytes came than were asked for", key, store.Name()));
  }
  if (answer.into_bytes != size) return ObjectEndsEarly(key, store, offset + size, offset + answer.into_bytes);
  return Ok();
}

}  // namespace weightwire
