// Options that several commands have. Each is declared here once, so that its help, default and unit are the same in
// every command. What a function fills must outlive the parsing.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>

#include "base/durations.h"
#include "cli/text.h"

namespace weightwire {

inline constexpr std::size_t kMaxThreads = 1024;

// RUN, and RUN[@VERSION].
CLI::Option* AddRun(CLI::App& app, std::string& run, const std::string& text);
CLI::Option* AddRunAtVersion(CLI::App& app, std::string& run);

void AddThreads(CLI::App& app, std::size_t& threads);
void AddJson(CLI::App& app, bool& json);

// --include-code of commands that write anchors, and of those that write a directory from them.
void AddIncludeCodeInAnchors(CLI::App& app, bool& include_code);
void AddIncludeCodeInDirectory(CLI::App& app, bool& include_code);

// `Path` is a path or an optional one.
template <typename Path>
CLI::Option* AddPath(CLI::App& app, const std::string& name, Path& path, const std::string& text) {
  return app
      .add_option_function<std::string>(
          name, [&path](const std::string& given) { path = std::filesystem::path(given); }, text)
      ->type_name("PATH");
}

// A whole number: decimal digits and nothing else. CLI11 alone takes "-1", as 2^64 - 1, and "010", as 8. `Number` is an
// unsigned integer or an optional one.
template <typename Number>
CLI::Option* AddNumber(CLI::App& app, const std::string& name, Number& number, const std::string& text) {
  return app
      .add_option_function<std::string>(
          name,
          [&number, name](const std::string& given) {
            const auto parsed = ParseNumber(given);
            if (!parsed.ok()) throw CLI::ValidationError(name, parsed.error().message());
            number = parsed.value();
          },
          text)
      ->type_name("N");
}

// "15m" and the like, into a duration or an optional one.
template <typename Duration>
CLI::Option* AddDuration(CLI::App& app, const std::string& name, Duration& duration, const std::string& text) {
  return app
      .add_option_function<std::string>(
          name,
          [&duration, name](const std::string& given) {
            const auto parsed = ParseDuration(given);
            if (!parsed.ok()) throw CLI::ValidationError(name, parsed.error().message());
            if constexpr (std::is_same_v<Duration, std::optional<std::chrono::milliseconds>>) {
              duration = parsed.value();
            } else {
              duration = std::chrono::ceil<Duration>(parsed.value());
            }
          },
          text)
      ->type_name("TIME");
}

// The same for an interval, which cannot be zero.
template <typename Duration>
CLI::Option* AddPositiveDuration(CLI::App& app, const std::string& name, Duration& duration, const std::string& text) {
  const auto not_zero = [](const std::string& given) -> std::string {
    const auto parsed = ParseDuration(given);
    return parsed.ok() && parsed.value().count() == 0 ? "it cannot be zero; write for example 500ms or 2s" : "";
  };
  return AddDuration(app, name, duration, text)->check(not_zero, "");
}

}  // namespace weightwire
