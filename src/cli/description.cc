#include "cli/description.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace weightwire {
namespace {

constexpr std::string_view kDefault = " (default: ";

OptionDescription DescribeOption(const CLI::Option& option) {
  OptionDescription described;
  if (option.get_positional()) {
    described.names.push_back(option.get_name(/*positional=*/true));
    described.value = option.get_type_name();
  } else {
    for (const std::string& name : option.get_snames()) described.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) described.names.push_back("--" + name);
    if (option.get_items_expected_max() > 0) described.value = option.get_type_name();
  }
  described.help = option.get_description();
  const std::size_t start = described.help.rfind(kDefault);
  if (start != std::string::npos && described.help.ends_with(')')) {
    described.default_text = described.help.substr(start + kDefault.size());
    described.default_text.pop_back();
    described.help.resize(start);
  }
  described.variable = option.get_envname();
  described.required = option.get_required();
  described.repeated = option.get_items_expected_max() > 1;
  return described;
}

// Of the program or of one command. --help is left out: it is said once.
void AddOptions(const CLI::App& app, std::vector<OptionDescription>& arguments,
                std::vector<OptionDescription>& options) {
  for (const CLI::Option* option : app.get_options()) {
    if (option == app.get_help_ptr()) continue;
    (option->get_positional() ? arguments : options).push_back(DescribeOption(*option));
  }
}

}  // namespace

std::string OptionDescription::Title() const {
  if (!names.front().starts_with('-')) {  // "RUN", whose type is "RUN[@VERSION]"; "DIR", whose type is "PATH"
    return value.starts_with(names.front()) ? value : names.front();
  }
  return fmt::format("{}{}{}", fmt::join(names, ", "), value.empty() ? "" : " ", value);
}

std::vector<std::string> OptionDescription::Choices() const {
  std::vector<std::string> words;
  if (value.find('|') == std::string::npos) return words;
  for (std::size_t start = 0; start <= value.size();) {
    const std::size_t end = std::min(value.find('|', start), value.size());
    const std::string word = value.substr(start, end - start);
    // "N|never": a number, or that word.
    const bool is_placeholder = std::any_of(word.begin(), word.end(), [](char c) { return 'A' <= c && c <= 'Z'; });
    if (!is_placeholder) words.push_back(word);
    start = end + 1;
  }
  return words;
}

std::string CommandDescription::Usage(const std::string& program) const {
  std::string text = fmt::format("{} {} [OPTIONS]", program, name);
  for (const OptionDescription& argument : arguments) {
    const std::string title = argument.Title() + (argument.repeated ? "..." : "");
    text += argument.required ? " " + title : " [" + title + "]";
  }
  return text;
}

const CommandDescription* ProgramDescription::Find(const std::string& command) const {
  const auto found =
      std::find_if(commands.begin(), commands.end(), [&](const auto& candidate) { return candidate.name == command; });
  return found == commands.end() ? nullptr : &*found;
}

ProgramDescription Describe(const CLI::App& program) {
  ProgramDescription described;
  described.name = program.get_name();
  described.summary = program.get_description();
  described.notes = program.get_footer();
  std::vector<OptionDescription> no_arguments;
  AddOptions(program, no_arguments, described.options);
  OptionDescription help;
  help.names = {"-h", "--help"};
  help.help = "print help and exit";
  described.options.push_back(std::move(help));
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    CommandDescription one;
    one.name = command->get_name();
    one.summary = command->get_description();
    one.notes = command->get_footer();
    AddOptions(*command, one.arguments, one.options);
    described.commands.push_back(std::move(one));
  }
  return described;
}

}  // namespace weightwire
