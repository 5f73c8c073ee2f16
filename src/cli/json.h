// JSON on standard output, for programs.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

namespace weightwire {

// Keys keep the order in which they are set: the important ones first.
using JsonOutput = nlohmann::ordered_json;

template <typename T>
[[nodiscard]] JsonOutput OrNull(const std::optional<T>& value) {
  return value.has_value() ? JsonOutput(*value) : JsonOutput(nullptr);
}

// Bytes of a path that are no UTF-8 are replaced, as JSON cannot hold them.
inline void PrintJson(const JsonOutput& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, JsonOutput::error_handler_t::replace));
}

// On one line, as one event of a command that goes on.
inline void PrintJsonLine(const JsonOutput& json) {
  fmt::print("{}\n", json.dump(-1, ' ', false, JsonOutput::error_handler_t::replace));
}

}  // namespace weightwire
