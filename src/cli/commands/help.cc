// weightwire help [COMMAND]: how to use the program or one command; with --json all of it, for tools/make_reference.py.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/nearest_word.h"
#include "cli/command.h"
#include "cli/commands/commands.h"
#include "cli/description.h"
#include "cli/help_text.h"
#include "cli/json.h"
#include "runner/error_kinds.h"
#include "runner/settings.h"

namespace weightwire {
namespace {

JsonOutput TextOrNull(std::string_view text) { return text.empty() ? JsonOutput(nullptr) : JsonOutput(text); }

JsonOutput ToJsonOutput(const std::vector<OptionDescription>& options) {
  JsonOutput json = JsonOutput::array();
  for (const OptionDescription& option : options) {
    JsonOutput item;
    item["names"] = option.names;
    item["title"] = option.Title();
    item["value"] = TextOrNull(option.value);
    item["choices"] = option.Choices();
    item["default"] = TextOrNull(option.default_text);
    item["variable"] = TextOrNull(option.variable);
    item["required"] = option.required;
    item["repeated"] = option.repeated;
    item["help"] = option.help;
    json.push_back(std::move(item));
  }
  return json;
}

JsonOutput ToJsonOutput(const Setting& setting) {
  JsonOutput json;
  json["name"] = setting.name;
  json["type"] = NameOf(setting.type);
  json["choices"] = WordsOf(setting.choices);
  json["default"] = TextOrNull(setting.default_text);
  json["option"] = setting.commands.empty() ? JsonOutput(nullptr) : JsonOutput(OptionName(setting));
  json["commands"] = WordsOf(setting.commands);
  json["python_name"] = setting.python.empty() ? JsonOutput(nullptr) : JsonOutput(PythonName(setting));
  json["python"] = WordsOf(setting.python);
  json["variable"] = TextOrNull(EnvironmentName(setting));
  json["engine"] = setting.engine;
  json["help"] = setting.help;
  json["note"] = TextOrNull(setting.note);
  return json;
}

JsonOutput ToJsonOutput(const ErrorKind& kind) {
  return {{"code", kind.name},
          {"exit_code", kind.exit_status},
          {"exception", kind.exception},
          {"retryable", kind.retryable},
          {"meaning", kind.meaning}};
}

JsonOutput ToJsonOutput(const ProgramDescription& program) {
  JsonOutput json;
  json["program"] = program.name;
  json["package_version"] = kVersion;
  json["summary"] = program.summary;
  json["notes"] = program.notes;
  json["options"] = ToJsonOutput(program.options);
  json["commands"] = JsonOutput::array();
  for (const CommandDescription& command : program.commands) {
    JsonOutput item;
    item["name"] = command.name;
    item["usage"] = command.Usage(program.name);
    item["summary"] = command.summary;
    item["arguments"] = ToJsonOutput(command.arguments);
    item["options"] = ToJsonOutput(command.options);
    item["notes"] = command.notes;
    json["commands"].push_back(std::move(item));
  }
  json["settings"] = JsonOutput::array();
  for (const Setting& setting : AllSettings()) json["settings"].push_back(ToJsonOutput(setting));
  json["other_variables"] = JsonOutput::array();
  for (const OtherVariable& other : OtherVariables()) {
    json["other_variables"].push_back({{"variable", other.name}, {"help", other.help}});
  }
  json["errors"] = JsonOutput::array();
  json["errors"].push_back({{"code", kUnexpected},
                            {"exit_code", kUnexpectedStatus},
                            {"exception", nullptr},
                            {"retryable", false},
                            {"meaning", "an error of weightwire itself"}});
  for (const ErrorKind& kind : AllErrorKinds()) json["errors"].push_back(ToJsonOutput(kind));
  return json;
}

Status RunHelp(const CLI::App& app, const std::string& name, const CommandTools& tools) {
  const ProgramDescription program = Describe(app);
  if (name.empty()) {
    if (tools.options->json) {
      PrintJson(ToJsonOutput(program));
    } else {
      fmt::print("{}", HelpText(program, HelpWidth()));
    }
    return Ok();
  }
  const CommandDescription* command = program.Find(name);
  if (command == nullptr) {
    std::vector<std::string> names;
    for (const CommandDescription& candidate : program.commands) names.push_back(candidate.name);
    const auto nearest = NearestWord(name, names);
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("no command '{}'; {}", name,
                             nearest.has_value() ? fmt::format("did you mean '{}'?", *nearest)
                                                 : fmt::format("see '{} --help'", program.name)));
  }
  fmt::print("{}", HelpText(program, *command, HelpWidth()));
  return Ok();
}

}  // namespace

Command AddHelp(CLI::App& app, const CommandTools& tools) {
  const auto name = std::make_shared<std::string>();
  CLI::App& sub = *app.add_subcommand("help", "explain the program or a command");
  sub.add_option("COMMAND", *name, "the command to explain (default: the program)")->type_name("COMMAND");
  sub.footer("With --json and without COMMAND, everything that the program offers is printed, for tools.");
  return {&sub, [&app, name, &tools] { return RunHelp(app, *name, tools); }};
}

}  // namespace weightwire
