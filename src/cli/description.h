// What a program offers, read from its declared commands and options. Help, completion scripts and the reference in
// docs/ are all made from it, so none of them can differ from what the program accepts.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace weightwire {

// An option, or an argument without a name of its own.
struct OptionDescription {
  std::vector<std::string> names;  // "-o", "--output"; of an argument "RUN"
  std::string value;               // "TIME", "text|json"; empty for a flag
  std::string help;
  std::string default_text;  // empty: none
  std::string variable;      // of the environment; may be empty
  bool required = false;
  bool repeated = false;

  // "-o, --output PATH", "RUN[@VERSION]".
  [[nodiscard]] std::string Title() const;
  // The words to choose from, if the value is one of several.
  [[nodiscard]] std::vector<std::string> Choices() const;
};

struct CommandDescription {
  std::string name;
  std::string summary;  // what it does, without a full stop
  std::string notes;    // paragraphs; indented lines are examples
  std::vector<OptionDescription> arguments;
  std::vector<OptionDescription> options;  // without the program's

  // "weightwire apply [OPTIONS] BASE [DELTA...]".
  [[nodiscard]] std::string Usage(const std::string& program) const;
};

struct ProgramDescription {
  std::string name;
  std::string summary;
  std::string notes;
  std::vector<CommandDescription> commands;
  std::vector<OptionDescription> options;  // of every command

  [[nodiscard]] const CommandDescription* Find(const std::string& command) const;
};

ProgramDescription Describe(const CLI::App& program);

}  // namespace weightwire
