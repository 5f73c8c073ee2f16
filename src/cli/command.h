// A program made of commands: it parses its arguments, runs one command, and turns an error into one sentence on
// standard error and an exit status.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command_tools.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the name is that of CLI11, whose header is large
class App;
}

namespace weightwire {

inline constexpr const char* kVersion = "0.1.0";  // of CMakeLists.txt

// One command: its options as CLI11 fills them, and what to run after they are parsed.
struct Command {
  CLI::App* app;
  std::function<Status()> run;
};

struct Program {
  std::string name;
  std::string description;
  std::string footer;                                           // of --help
  std::function<std::vector<Command>(CLI::App&)> add_commands;  // in the order that --help shows
};

// An exception that no error stands for. Its kind is in no table of errors, because nobody can react to it.
inline constexpr const char* kUnexpected = "unexpected";
inline constexpr int kUnexpectedStatus = 1;

// What main does. Fills `options` before a command runs. Without a command it prints --help as an error. Returns the
// exit status (runner/error_kinds.h).
int RunProgram(const Program& program, GlobalOptions& options, int argc, const char* const* argv);

// The program `weightwire`.
int RunWeightwire(int argc, const char* const* argv, const CommandTools& tools);

// Makes malloc keep up to 1 GiB of freed memory. Staged changes are large and are allocated again for every version,
// and the system would map each of them again, page by page.
void KeepFreedMemory();

}  // namespace weightwire
