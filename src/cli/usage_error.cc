#include "cli/usage_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "base/nearest_word.h"

namespace weightwire {
namespace {

// The first argument that the parser could not place.
std::optional<std::string> FirstLeftOver(const CLI::App& app, std::span<const char* const> arguments) {
  const std::vector<std::string> left_over = app.remaining(/*recurse=*/true);
  for (const char* argument : arguments) {
    if (std::find(left_over.begin(), left_over.end(), argument) != left_over.end()) return argument;
  }
  return std::nullopt;
}

std::string DidYouMean(const std::optional<std::string>& word) {
  return word.has_value() ? fmt::format("; did you mean '{}'?", *word) : "";
}

void AddNames(const std::vector<OptionDescription>& options, std::vector<std::string>& names) {
  for (const OptionDescription& option : options) names.insert(names.end(), option.names.begin(), option.names.end());
}

}  // namespace

std::string UsageErrorSentence(const CLI::App& app, const ProgramDescription& program, const CLI::ParseError& error,
                               std::span<const char* const> arguments) {
  std::string named = program.name;
  const CommandDescription* command = nullptr;
  for (const CLI::App* parsed : app.get_subcommands()) {
    command = program.Find(parsed->get_name());
    named += " " + parsed->get_name();
  }
  const std::string see = fmt::format("see '{} --help'", named);
  const auto left_over = FirstLeftOver(app, arguments);
  const bool is_option = left_over.has_value() && left_over->starts_with('-') && left_over->size() > 1;
  if (is_option) {
    std::vector<std::string> names;
    AddNames(program.options, names);
    if (command != nullptr) AddNames(command->options, names);
    const std::string name = left_over->substr(0, left_over->find('='));
    const auto nearest = NearestWord(name, names);
    return fmt::format("'{}' has no option '{}'{}", named, name,
                       nearest.has_value() ? DidYouMean(nearest) : "; " + see);
  }
  if (left_over.has_value() && command == nullptr) {
    std::vector<std::string> names;
    for (const CommandDescription& candidate : program.commands) names.push_back(candidate.name);
    const auto nearest = NearestWord(*left_over, names);
    return fmt::format("no command '{}'{}", *left_over, nearest.has_value() ? DidYouMean(nearest) : "; " + see);
  }
  if (left_over.has_value()) return fmt::format("'{}' takes no argument '{}'; {}", named, *left_over, see);
  return fmt::format("{}; {}", error.what(), see);
}

}  // namespace weightwire
