#include "tensor/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/limits.h"

namespace weightwire {
namespace {

// The interface nlohmann::json::sax_parse calls, in its spelling. Returning false stops the parser.
class SaxAdapter {
 public:
  explicit SaxAdapter(const std::function<Status(JsonEvent&)>& on_event) : on_event_(on_event) {}

  [[nodiscard]] std::optional<Error> error() const { return error_; }

  // NOLINTBEGIN(readability-identifier-naming)
  bool null() { return Value(JsonEvent::Kind::kNull); }
  bool boolean(bool value) { return Value(JsonEvent::Kind::kBoolean, value ? 1 : 0); }
  bool number_integer(std::int64_t /*value*/) { return Value(JsonEvent::Kind::kOtherNumber); }
  bool number_unsigned(std::uint64_t value) { return Value(JsonEvent::Kind::kUnsigned, value); }
  bool number_float(double /*value*/, const std::string& /*text*/) { return Value(JsonEvent::Kind::kOtherNumber); }
  bool string(std::string& text) { return Value(JsonEvent::Kind::kString, 0, std::move(text)); }
  bool binary(std::vector<std::uint8_t>& /*value*/) { return false; }  // not in JSON text
  bool key(std::string& text) { return Value(JsonEvent::Kind::kKey, 0, std::move(text)); }
  bool start_object(std::size_t /*size*/) { return Start(JsonEvent::Kind::kStartObject); }
  bool end_object() { return End(JsonEvent::Kind::kEndObject); }
  bool start_array(std::size_t /*size*/) { return Start(JsonEvent::Kind::kStartArray); }
  bool end_array() { return End(JsonEvent::Kind::kEndArray); }
  bool parse_error(std::size_t position, const std::string& /*token*/, const std::exception& /*reason*/) {
    error_ = Error(ErrorCode::kCorrupt, fmt::format("not valid JSON at byte {}", position));
    return false;
  }
  // NOLINTEND(readability-identifier-naming)

 private:
  bool Value(JsonEvent::Kind kind, std::uint64_t number = 0, std::string text = {}) {
    JsonEvent event{kind, depth_, number, std::move(text)};
    Status status = on_event_(event);
    if (!status.ok()) error_ = status.error();
    return status.ok();
  }

  bool Start(JsonEvent::Kind kind) {
    if (depth_ == kMaxJsonDepth) {
      error_ = Error(ErrorCode::kLimit, fmt::format("nested more than {} deep", kMaxJsonDepth));
      return false;
    }
    const bool go_on = Value(kind);
    ++depth_;
    return go_on;
  }

  bool End(JsonEvent::Kind kind) {
    --depth_;
    return Value(kind);
  }

  const std::function<Status(JsonEvent&)>& on_event_;
  int depth_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Status ReadJson(std::string_view text, const std::function<Status(JsonEvent&)>& on_event) {
  // The parser takes a NUL for the end of its input and would ignore whatever follows.
  if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {
    return Error(ErrorCode::kCorrupt, fmt::format("not valid JSON at byte {}", at + 1));
  }
  // It would also pass over a byte order mark.
  if (text.starts_with("\xef\xbb\xbf")) return Error(ErrorCode::kCorrupt, "not valid JSON at byte 1");
  SaxAdapter adapter(on_event);
  const bool accepted = nlohmann::json::sax_parse(text.begin(), text.end(), &adapter);
  if (const auto error = adapter.error()) return *error;
  WW_CHECK(accepted);
  return Ok();
}

void AppendJsonString(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

bool IsUtf8(std::string_view text) {
  // RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned first = byte(i);
    const unsigned second = byte(i + 1);
    if (first < 0x80) {
      i += 1;
    } else if (first >= 0xC2 && first <= 0xDF && continues(i + 1)) {
      i += 2;
    } else if ((first & 0xF0U) == 0xE0 && continues(i + 1) && continues(i + 2) && (first != 0xE0 || second >= 0xA0) &&
               (first != 0xED || second < 0xA0)) {
      i += 3;
    } else if (first >= 0xF0 && first <= 0xF4 && continues(i + 1) && continues(i + 2) && continues(i + 3) &&
               (first != 0xF0 || second >= 0x90) && (first != 0xF4 || second < 0x90)) {
      i += 4;
    } else {
      return false;
    }
  }
  return true;
}

std::string Printable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto code = static_cast<unsigned char>(text[i]);
    // In UTF-8, U+0080 to U+009F are this byte and their own.
    const auto next = static_cast<unsigned char>(code == 0xC2 && i + 1 < text.size() ? text[i + 1] : 0);
    const bool second_set = next >= 0x80 && next < 0xA0;
    if (second_set) {
      code = next;
      ++i;
    }
    if (second_set || code < 0x20 || code == 0x7F) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += static_cast<char>(code);
    }
  }
  return out;
}

std::string Quoted(std::string_view name) {
  constexpr std::size_t kMaxShownBytes = 200;
  std::string out;
  if (name.size() <= kMaxShownBytes) {
    AppendJsonString(out, name);
    return Printable(out);
  }
  std::size_t cut = kMaxShownBytes;
  while (cut > 0 && (static_cast<unsigned char>(name[cut]) & 0xC0U) == 0x80U) --cut;  // not within a character
  AppendJsonString(out, name.substr(0, cut));
  return Printable(out) + "…";
}

}  // namespace weightwire
