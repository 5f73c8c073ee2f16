#include "runner/settings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/nearest_word.h"

namespace weightwire {
namespace {

constexpr std::string_view kPrefix = "WEIGHTWIRE_";

constexpr std::array kTable = {
    settings::kThreads,
    settings::kLogFormat,
    settings::kMaxBytesPerSecond,
    settings::kRetryFor,
    settings::kStateDir,
    settings::kAnchorEvery,
    settings::kAnchorPercent,
    settings::kSingleWriter,
    settings::kDiscardConflicting,
    settings::kAllowNewModel,
    settings::kIncludeCodeInAnchors,
    settings::kIncludeCodeInDirectory,
    settings::kPollInterval,
    settings::kEveryVersion,
    settings::kMaxLag,
    settings::kMinUpdateInterval,
    settings::kPin,
    settings::kName,
    settings::kLease,
    settings::kWaitForRun,
    settings::kVerify,
    settings::kAdopt,
    settings::kSwap,
    settings::kMetrics,
    settings::kRun,
    settings::kMirror,
    settings::kEngineVerify,
    settings::kVerifyInterval,
};

constexpr std::array kOthers = {
    OtherVariable{"WEIGHTWIRE_VERSION", "set for the command of `follow --exec`: the version that the mirror holds"},
    OtherVariable{"WEIGHTWIRE_STEP", "set for the command of `follow --exec`: the trainer's step of that version"},
    OtherVariable{"WEIGHTWIRE_ISA", "for debugging: the instruction set to compute with, such as scalar"},
};

std::string Replaced(std::string_view text, char to) {
  std::string result(text);
  std::replace(result.begin(), result.end(), '-', to);
  return result;
}

std::vector<std::string> KnownVariables() {
  std::vector<std::string> names;
  for (const Setting& setting : kTable) {
    if (setting.environment) names.push_back(EnvironmentName(setting));
  }
  for (const OtherVariable& other : kOthers) names.emplace_back(other.name);
  return names;
}

}  // namespace

std::span<const Setting> AllSettings() { return kTable; }

std::string OptionName(const Setting& setting) {
  const bool negative = setting.type == SettingType::kFlag && setting.default_text == "1";
  return (negative ? "--no-" : "--") + std::string(setting.name);
}

std::string PythonName(const Setting& setting) { return Replaced(setting.name, '_'); }

std::string EnvironmentName(const Setting& setting) {
  if (!setting.environment) return {};
  std::string name = Replaced(setting.name, '_');
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return 'a' <= c && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  return std::string(kPrefix) + name;
}

std::string_view NameOf(SettingType type) {
  switch (type) {
    case SettingType::kFlag:
      return "flag";
    case SettingType::kCount:
      return "count";
    case SettingType::kCountOrNever:
      return "count_or_never";
    case SettingType::kVersion:
      return "version";
    case SettingType::kDuration:
      return "duration";
    case SettingType::kSize:
      return "size";
    case SettingType::kPath:
      return "path";
    case SettingType::kText:
      return "text";
    case SettingType::kChoice:
      return "choice";
  }
  return "";
}

std::vector<std::string> WordsOf(std::string_view words) {
  std::vector<std::string> list;
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    if (end > 0) list.emplace_back(words.substr(0, end));
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return list;
}

std::span<const OtherVariable> OtherVariables() { return kOthers; }

std::vector<std::string> UnknownVariables(const std::vector<std::string>& names) {
  const auto known = KnownVariables();
  std::vector<std::string> unknown;
  for (const std::string& name : names) {
    if (name.starts_with(kPrefix) && std::find(known.begin(), known.end(), name) == known.end()) {
      unknown.push_back(name);
    }
  }
  std::sort(unknown.begin(), unknown.end());
  return unknown;
}

std::vector<std::string> UnknownVariables() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return UnknownVariables(names);
}

std::string UnknownVariableWarning(const std::string& name) {
  const auto nearest = NearestWord(name, KnownVariables());
  const std::string hint = nearest.has_value() ? fmt::format("; did you mean {}?", *nearest) : std::string();
  return fmt::format("{} is unknown and has no effect{}", name, hint);
}

}  // namespace weightwire
