#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/environment.h"

namespace weightwire {

CLI::Option* AddRun(CLI::App& app, std::string& run, const std::string& text) {
  return app.add_option("RUN", run, text)->type_name("RUN")->required();
}

CLI::Option* AddRunAtVersion(CLI::App& app, std::string& run) {
  return app.add_option("RUN", run, "the run, and a version of it after '@'; the newest unless given")
      ->type_name("RUN[@VERSION]")
      ->required();
}

void AddIncludeCodeInDirectory(CLI::App& app, bool& include_code) {
  app.add_flag("--include-code", include_code,
               "bring files along that can run as code when loaded (.py, pickles); only from a bucket you trust");
}

// --- settings ---

std::string HelpOf(const Setting& setting) {
  const bool shows_default = !setting.default_text.empty() && setting.type != SettingType::kFlag;
  const std::string never = setting.type == SettingType::kCountOrNever ? ", or never" : "";
  // A flag that is set by default is an option that clears it.
  const std::string negation = OptionName(setting).starts_with("--no-") ? "do not " : "";
  return fmt::format("{}{}{}{}", negation, setting.help, never,
                     shows_default ? fmt::format(" (default: {})", setting.default_text) : "");
}

std::string TypeNameOf(const Setting& setting) {
  switch (setting.type) {
    case SettingType::kFlag:
      return "";
    case SettingType::kCount:
      return "N";
    case SettingType::kCountOrNever:
      return "N|never";
    case SettingType::kVersion:
      return "VERSION";
    case SettingType::kDuration:
      return "TIME";
    case SettingType::kSize:
      return "SIZE";
    case SettingType::kPath:
      return "PATH";
    case SettingType::kText:
      return "TEXT";
    case SettingType::kChoice:
      return fmt::format("{}", fmt::join(WordsOf(setting.choices), "|"));
  }
  return "";
}

void ThrowInvalid(const Setting& setting, const std::string& text, const std::string& why) {
  const std::string variable = EnvironmentName(setting);
  const bool is_variable = !variable.empty() && SystemEnvironment()(variable) == text;
  // Not a ValidationError: CLI11 would put the option's name in front of it.
  throw CLI::ConversionError((is_variable ? variable : OptionName(setting)) + ": " + why);
}

bool FlagOf(const Setting& setting, const std::string& text) {
  const auto parsed = ParseFlag(text);
  if (!parsed.ok()) ThrowInvalid(setting, text, parsed.error().message());
  return parsed.value();
}

std::optional<std::uint64_t> NumberOf(const Setting& setting, const std::string& text) {
  const bool may_be_never = setting.type == SettingType::kCountOrNever;
  WW_CHECK(may_be_never || setting.type == SettingType::kCount || setting.type == SettingType::kVersion ||
           setting.type == SettingType::kSize);
  if (may_be_never && text == "never") return std::nullopt;
  const auto parsed = setting.type == SettingType::kSize ? ParseSize(text) : ParseNumber(text);
  if (!parsed.ok()) ThrowInvalid(setting, text, parsed.error().message());
  if (parsed.value() == 0 && may_be_never) ThrowInvalid(setting, text, "it cannot be zero; write 'never'");
  if (parsed.value() == 0 && setting.positive) ThrowInvalid(setting, text, "it cannot be zero");
  return parsed.value();
}

std::chrono::milliseconds DurationOf(const Setting& setting, const std::string& text) {
  WW_CHECK(setting.type == SettingType::kDuration);
  const auto parsed = ParseDuration(text);
  if (!parsed.ok()) ThrowInvalid(setting, text, parsed.error().message());
  if (parsed.value().count() == 0 && setting.positive) {
    ThrowInvalid(setting, text, "it cannot be zero; write for example 500ms or 2s");
  }
  return parsed.value();
}

std::string TextOf(const Setting& setting, const std::string& text) {
  WW_CHECK(setting.type == SettingType::kText || setting.type == SettingType::kPath ||
           setting.type == SettingType::kChoice);
  const auto choices = WordsOf(setting.choices);
  if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end()) {
    ThrowInvalid(setting, text, fmt::format("'{}' is none of {}", text, fmt::join(choices, ", ")));
  }
  return text;
}

}  // namespace weightwire
