#include "cli/completion.h"

#include <fmt/format.h>

#include <algorithm>

namespace weightwire {
namespace {

std::vector<std::string> NamesOf(const std::vector<OptionDescription>& options) {
  std::vector<std::string> names;
  for (const OptionDescription& option : options) names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

std::vector<std::string> CommandNames(const ProgramDescription& program) {
  std::vector<std::string> names;
  for (const CommandDescription& command : program.commands) names.push_back(command.name);
  return names;
}

// The words that an argument of a command can be, where there are only a few; nothing where it is a file or free text.
std::vector<std::string> WordsOfArgument(const ProgramDescription& program, const CommandDescription& command) {
  for (const OptionDescription& argument : command.arguments) {
    if (argument.value == "COMMAND") return CommandNames(program);
    if (!argument.Choices().empty()) return argument.Choices();
  }
  return {};
}

// 'text', with what the shell would take out of quotes.
std::string ShellQuoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// --- bash ---

// "publish:--step|publish:-s", patterns of a case; "*:--threads" for the program's.
std::string Patterns(const std::string& command, const OptionDescription& option) {
  std::vector<std::string> patterns;
  for (const std::string& name : option.names) patterns.push_back(fmt::format("{}:{}", command, name));
  return fmt::format("{}", fmt::join(patterns, "|"));
}

// What completes the value of an option.
std::string BashValue(const std::string& command, const OptionDescription& option) {
  if (option.value.empty()) return "";
  std::string action = "return";
  if (option.value == "PATH") action = "COMPREPLY=($(compgen -f -- \"$current\")); return";
  if (const auto words = option.Choices(); !words.empty()) {
    action = fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$current\")); return", fmt::join(words, " "));
  }
  return fmt::format("    {}) {} ;;\n", Patterns(command, option), action);
}

std::string BashScript(const ProgramDescription& program) {
  std::string options;
  std::string arguments;
  std::string values;
  for (const CommandDescription& command : program.commands) {
    if (!command.options.empty()) {
      options += fmt::format("    {}) options+=' {}' ;;\n", command.name, fmt::join(NamesOf(command.options), " "));
    }
    if (const auto words = WordsOfArgument(program, command); !words.empty()) {
      arguments += fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$current\")); return ;;\n", command.name,
                               fmt::join(words, " "));
    }
    for (const OptionDescription& option : command.options) values += BashValue(command.name, option);
  }
  for (const OptionDescription& option : program.options) values += BashValue("*", option);
  return fmt::format(R"(# bash completion of {0}. Load it with: source <({0} completion bash)
_{0}() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local commands='{1}' options='{2}' command='' word
  COMPREPLY=()
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    if [[ " $commands " == *" $word "* ]]; then command="$word"; break; fi
  done
  case "$command" in
{3}  esac
  case "$command:$previous" in
{4}  esac
  if [[ "$current" == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
    return
  fi
  case "$command" in
    '') COMPREPLY=($(compgen -W "$commands" -- "$current")); return ;;
{5}  esac
  COMPREPLY=($(compgen -f -- "$current"))
}}
complete -o filenames -F _{0} {0}
)",
                     program.name, fmt::join(CommandNames(program), " "), fmt::join(NamesOf(program.options), " "),
                     options, values, arguments);
}

// --- zsh ---

// Within [] and before ':' of a specification of _arguments.
std::string ZshEscaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string ZshValue(const OptionDescription& option) {
  if (option.value.empty()) return "";
  const auto words = option.Choices();
  const std::string action = !words.empty()           ? fmt::format("({})", fmt::join(words, " "))
                             : option.value == "PATH" ? "_files"
                                                      : " ";
  return fmt::format(":{}:{}", ZshEscaped(option.value), action);
}

void AddZshOptions(const std::vector<OptionDescription>& options, std::vector<std::string>& specifications) {
  for (const OptionDescription& option : options) {
    for (const std::string& name : option.names) {
      specifications.push_back(ShellQuoted(fmt::format("{}[{}]{}", name, ZshEscaped(option.help), ZshValue(option))));
    }
  }
}

std::string ZshScript(const ProgramDescription& program) {
  std::string described;
  std::string cases;
  for (const CommandDescription& command : program.commands) {
    described += fmt::format("    {}\n", ShellQuoted(fmt::format("{}:{}", command.name, ZshEscaped(command.summary))));
    std::vector<std::string> specifications;
    AddZshOptions(command.options, specifications);
    AddZshOptions(program.options, specifications);
    const auto words = WordsOfArgument(program, command);
    specifications.push_back(
        ShellQuoted(words.empty() ? "*:file:_files" : fmt::format("*:word:({})", fmt::join(words, " "))));
    cases += fmt::format("    {}) _arguments {} ;;\n", command.name, fmt::join(specifications, " "));
  }
  std::vector<std::string> global;
  AddZshOptions(program.options, global);
  return fmt::format(R"(#compdef {0}
# zsh completion of {0}. Write it to a file _{0} in a folder of $fpath, or load it with: source <({0} completion zsh)
_{0}() {{
  local -a commands
  commands=(
{1}  )
  local word command=''
  for word in ${{words[2,CURRENT-1]}}; do
    if (( ${{commands[(I)$word:*]}} )); then command=$word; break; fi
  done
  case $command in
    '') _arguments {2} '1:command:->commands' && return
      _describe command commands ;;
{3}  esac
}}
if [[ $funcstack[1] == _{0} ]]; then _{0} "$@"; else compdef _{0} {0}; fi
)",
                     program.name, described, fmt::join(global, " "), cases);
}

// --- fish ---

void AddFishOptions(const std::string& program, const std::string& condition,
                    const std::vector<OptionDescription>& options, std::string& text) {
  for (const OptionDescription& option : options) {
    text += fmt::format("complete -c {}{}", program, condition);
    for (const std::string& name : option.names) {
      text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    const auto words = option.Choices();
    if (!words.empty()) {
      text += fmt::format(" -x -a {}", ShellQuoted(fmt::format("{}", fmt::join(words, " "))));
    } else if (option.value == "PATH") {
      text += " -r -F";
    } else if (!option.value.empty()) {
      text += " -x";
    }
    text += fmt::format(" -d {}\n", ShellQuoted(option.help));
  }
}

std::string FishScript(const ProgramDescription& program) {
  std::string text =
      fmt::format("# fish completion of {0}. Load it with: {0} completion fish | source\n", program.name);
  for (const CommandDescription& command : program.commands) {
    text += fmt::format("complete -c {} -f -n __fish_use_subcommand -a {} -d {}\n", program.name, command.name,
                        ShellQuoted(command.summary));
  }
  AddFishOptions(program.name, "", program.options, text);
  for (const CommandDescription& command : program.commands) {
    const std::string condition = fmt::format(" -n '__fish_seen_subcommand_from {}'", command.name);
    AddFishOptions(program.name, condition, command.options, text);
    if (const auto words = WordsOfArgument(program, command); !words.empty()) {
      text += fmt::format("complete -c {} -f{} -a {}\n", program.name, condition,
                          ShellQuoted(fmt::format("{}", fmt::join(words, " "))));
    }
  }
  return text;
}

}  // namespace

Result<std::string> CompletionScript(const ProgramDescription& program, const std::string& shell) {
  if (shell == "bash") return BashScript(program);
  if (shell == "zsh") return ZshScript(program);
  if (shell == "fish") return FishScript(program);
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("there is no completion for '{}'; there is one for bash, zsh and fish", shell));
}

}  // namespace weightwire
