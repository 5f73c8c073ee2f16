#include "cli/command.h"

#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <new>
#include <system_error>

#include "cli/commands/commands.h"
#include "cli/interrupt.h"
#include "runner/error_kinds.h"

namespace weightwire {
namespace {

constexpr const char* kDescription =
    "weightwire moves a model's weights from a trainer to inference servers, through nothing but a bucket, as lossless "
    "deltas: what changed between two states, in a small file that turns the one into the other bit for bit, and "
    "refuses to touch anything else.\n"
    "A checkpoint is a safetensors file or a Hugging Face directory. A run (RUN) is a chain of versions of one model, "
    "in a bucket or a directory: a URL or a path.";

constexpr const char* kFooter =
    "A run:\n"
    "  weightwire publish /shared/run out/checkpoint-10    add a version\n"
    "  weightwire follow /shared/run mirror                keep a directory at the newest version\n"
    "  weightwire log /shared/run                          what there is, and who follows\n"
    "\n"
    "Two checkpoints:\n"
    "  weightwire diff step-10 step-11 -o 11.delta         what changed, and a file that carries it\n"
    "  weightwire apply step-10 11.delta -o copy-of-11     the same weights somewhere else\n"
    "  weightwire digest copy-of-11                        equal for equal weights\n"
    "\n"
    "Each command has its own --help. WEIGHTWIRE_ISA chooses the instruction set (for example 'scalar').\n";

// The exit statuses, for --help.
std::string ExitStatusHelp() {
  std::string text = "\nExit status:\n   0  success\n   1  an unexpected error\n";
  for (const ErrorKind& kind : AllErrorKinds()) text += fmt::format("  {:>2}  {}\n", kind.exit_status, kind.meaning);
  return text + "  128 + N  ended by signal N\n";
}

// Shows `--no-lease`, where CLI11 would show the value it stands for too: `--no-lease{false}`.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    const std::string name = CLI::Formatter::make_option_name(option, is_positional);
    return name.substr(0, name.find('{'));
  }
};

// "weightwire: …" on one line, even if a file's name holds a line break.
int Fail(const Program& program, const std::string& sentence, ErrorCode code) {
  std::string line = sentence;
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  fmt::print(stderr, "{}: {}\n", program.name, line);
  return KindOf(code).exit_status;
}

int Finish(const Program& program, const Status& status) {
  if (!status.ok()) return Fail(program, status.error().message(), status.error().code());
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return Fail(program, "cannot write to standard output", ErrorCode::kIo);
  }
  return 0;
}

int ParseAndRun(const Program& program, GlobalOptions& options, int argc, const char* const* argv) {
  CLI::App app(program.description, program.name);
  app.footer(program.footer);
  app.set_version_flag("--version", fmt::format("{} {}", program.name, kVersion), "print the version and exit");
  app.set_help_flag("-h,--help", "print this and exit");
  app.formatter(std::make_shared<HelpFormatter>());
  app.get_formatter()->column_width(28);
  app.require_subcommand(0, 1);
  app.option_defaults()->take_last();
  AddGlobalOptions(app, options);
  const std::vector<Command> commands = program.add_commands(app);
  for (const Command& command : commands) command.app->fallthrough();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    app.exit(asked);
    return Finish(program, Ok());
  } catch (const CLI::ParseError& error) {
    std::string named = program.name;
    for (const CLI::App* command : app.get_subcommands()) named += " " + command->get_name();
    return Fail(program, fmt::format("{}; see '{} --help'", error.what(), named), ErrorCode::kInvalidArgument);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return Finish(program, command.run());
  }
  fmt::print("{}", app.help());
  return Finish(program, Ok());
}

}  // namespace

int RunProgram(const Program& program, GlobalOptions& options, int argc, const char* const* argv) {
  int status = 0;
  try {
    status = ParseAndRun(program, options, argc, argv);
  } catch (const std::bad_alloc&) {
    status = Fail(program, "there is not enough memory", ErrorCode::kIo);
  } catch (const std::system_error& error) {  // of fmt::print, or of a thread that cannot be started
    const bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    status = Fail(program,
                  no_thread ? "cannot start a thread: the limit of this user or container is reached"
                            : "cannot write to standard output",
                  ErrorCode::kIo);
  }
  InterruptGuard::RaiseCaught();
  return status;
}

int RunWeightwire(int argc, const char* const* argv, const CommandTools& tools) {
  const auto add_commands = [&tools](CLI::App& app) -> std::vector<Command> {
    return {AddDiff(app, tools),     AddApply(app, tools),   AddInspect(app, tools), AddDigest(app, tools),
            AddInit(app, tools),     AddPublish(app, tools), AddLog(app, tools),     AddCheckout(app, tools),
            AddFollow(app, tools),   AddAnchor(app, tools),  AddGc(app, tools),      AddVerify(app, tools),
            AddFollowers(app, tools)};
  };
  return RunProgram({"weightwire", kDescription, std::string(kFooter) + ExitStatusHelp(), add_commands}, *tools.options,
                    argc, argv);
}

void KeepFreedMemory() {
  constexpr int kKeepBytes = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kKeepBytes);
  mallopt(M_TRIM_THRESHOLD, kKeepBytes);
}

}  // namespace weightwire
