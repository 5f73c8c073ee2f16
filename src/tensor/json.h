// JSON as a stream of events, for text from outside, and the string escaping of what we write.
//
// Reading keeps no tree and does not recurse: memory and stack stay small however hostile the text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weightwire {

struct JsonEvent {
  enum class Kind : std::uint8_t {
    kNull,
    kBoolean,
    kUnsigned,     // an integer in [0, 2^64)
    kOtherNumber,  // any other number: negative, fractional, too large
    kString,
    kKey,
    kStartObject,
    kEndObject,
    kStartArray,
    kEndArray,
  };
  Kind kind;
  int depth;                 // objects and arrays open around it; a start and its end have the same depth
  std::uint64_t number = 0;  // of kUnsigned; of kBoolean, 1 is true
  std::string text;          // of kString and kKey: valid UTF-8, unescaped; the receiver may move it away
};

// Calls on_event for everything in `text`, which must be one JSON value, surrounded by nothing but white space. Stops
// at the first error of either side. Duplicate keys are the receiver's to notice.
Status ReadJson(std::string_view text, const std::function<Status(JsonEvent&)>& on_event);

// Appends `text` as a JSON string: only '"', '\' and bytes below 0x20 are escaped, the last as \u00xx, so that a string
// has exactly one spelling.
void AppendJsonString(std::string& out, std::string_view text);

[[nodiscard]] bool IsUtf8(std::string_view text);

// Text from outside as it can be shown on a terminal: control characters are escaped, as \u00xx.
[[nodiscard]] std::string Printable(std::string_view text);

// A name from outside as it can be shown in an error: quoted, control characters escaped, cut when very long.
[[nodiscard]] std::string Quoted(std::string_view name);

}  // namespace weightwire
