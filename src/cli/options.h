// Options that several commands have. Each is declared here once, so that its help, default and unit are the same in
// every command. What a function fills must outlive the parsing.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "base/quantities.h"
#include "cli/text.h"
#include "runner/settings.h"

namespace weightwire {

// RUN, and RUN[@VERSION].
CLI::Option* AddRun(CLI::App& app, std::string& run, const std::string& text);
CLI::Option* AddRunAtVersion(CLI::App& app, std::string& run);

// --include-code of commands that write a directory from anchors.
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

// --- settings (runner/settings.h) ---

// The help of a setting with its default, "look for a newer version every TIME (default: 1s)".
std::string HelpOf(const Setting& setting);
// The name of the value in --help: "TIME", "N", "text|json".
std::string TypeNameOf(const Setting& setting);
// Throws CLI::ConversionError, which names the option, or the variable if the text came from there.
[[noreturn]] void ThrowInvalid(const Setting& setting, const std::string& text, const std::string& why);

// Parses the value of a setting. Throws CLI::ConversionError.
bool FlagOf(const Setting& setting, const std::string& text);
// Of a count, a version or a size; nothing for "never".
std::optional<std::uint64_t> NumberOf(const Setting& setting, const std::string& text);
std::chrono::milliseconds DurationOf(const Setting& setting, const std::string& text);
std::string TextOf(const Setting& setting, const std::string& text);

template <typename T>
struct SettingTarget {
  using Value = T;
};
template <typename T>
struct SettingTarget<std::optional<T>> {
  using Value = T;
};
template <typename T>
inline constexpr bool kIsDuration = false;
template <typename Rep, typename Period>
inline constexpr bool kIsDuration<std::chrono::duration<Rep, Period>> = true;

// Declares a setting as an option of a command, with its help, default, type name and variable. The option overrides
// the variable. `target` is, or is a std::optional of: bool for a flag; an unsigned integer for a count, a version or a
// size; a std::chrono duration; a std::filesystem::path; a std::string for a text or a choice. "never" sets an optional
// to nullopt and a number to 0. `target` keeps its value, which should be the default of the table, if neither option
// nor variable is given.
template <typename Target>
CLI::Option* AddSetting(CLI::App& app, const Setting& setting, Target& target) {
  using Value = typename SettingTarget<Target>::Value;
  const std::string name = OptionName(setting);
  CLI::Option* option = nullptr;
  if constexpr (std::is_same_v<Value, bool>) {
    WW_CHECK(setting.type == SettingType::kFlag);
    // --no-lease gives "false", as the variable does.
    const std::string flag = name.starts_with("--no-") ? name + "{false}" : name;
    option = app.add_flag_function(
        flag, [](std::int64_t) {}, HelpOf(setting));
    option->each([&target, &setting](const std::string& text) { target = FlagOf(setting, text); });
  } else {
    const auto set = [&target, &setting](const std::string& text) {
      if constexpr (kIsDuration<Value>) {
        target = std::chrono::ceil<Value>(DurationOf(setting, text));
      } else if constexpr (std::is_unsigned_v<Value>) {
        const std::optional<std::uint64_t> number = NumberOf(setting, text);
        if (number.has_value() && *number > std::numeric_limits<Value>::max()) {
          ThrowInvalid(setting, text, "it is too large");
        }
        if constexpr (std::is_same_v<Target, Value>) {
          target = static_cast<Value>(number.value_or(0));
        } else {
          target = number.has_value() ? Target(static_cast<Value>(*number)) : Target();
        }
      } else {
        target = Value(TextOf(setting, text));
      }
    };
    option = app.add_option_function<std::string>(name, set, HelpOf(setting))->type_name(TypeNameOf(setting));
  }
  if (setting.environment) option->envname(EnvironmentName(setting));
  return option;
}

}  // namespace weightwire
