// What the declarations of commands share: a command, and options that many of them have.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/numbers.h"

namespace weightwire {

inline constexpr std::size_t kMaxThreads = 1024;

// One command: its options as CLI11 fills them, and what to run.
struct Command {
  CLI::App* app;
  std::function<Status()> run;
};

// Options that hold a path.
inline CLI::Option* AddPath(CLI::App& app, const std::string& name, std::filesystem::path& path,
                            const std::string& text) {
  return app
      .add_option_function<std::string>(
          name, [&path](const std::string& given) { path = given; }, text)
      ->type_name("PATH");
}
inline CLI::Option* AddPath(CLI::App& app, const std::string& name, std::optional<std::filesystem::path>& path,
                            const std::string& text) {
  return app
      .add_option_function<std::string>(
          name, [&path](const std::string& given) { path = given; }, text)
      ->type_name("PATH");
}
// Options that hold a whole number: decimal digits and nothing else. CLI11 alone takes "-1", as 2^64 - 1, and "010",
// as 8.
template <typename Number>
inline CLI::Option* AddNumber(CLI::App& app, const std::string& name, Number& number, const std::string& text) {
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
inline void AddThreads(CLI::App& app, std::size_t& threads) {
  AddNumber(app, "--threads", threads, "how many threads; as many as the machine has unless given")
      ->check(CLI::Range(std::size_t{1}, kMaxThreads).description(""));
}
inline void AddJson(CLI::App& app, bool& json) { app.add_flag("--json", json, "print JSON, for programs"); }

}  // namespace weightwire
