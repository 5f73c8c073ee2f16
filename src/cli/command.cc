#include "cli/command.h"

#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <span>
#include <string_view>
#include <system_error>

#include "base/environment.h"
#include "cli/commands/commands.h"
#include "cli/description.h"
#include "cli/help_text.h"
#include "cli/interrupt.h"
#include "cli/messages.h"
#include "cli/usage_error.h"
#include "runner/error_kinds.h"
#include "runner/settings.h"

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
    "  weightwire log /shared/run                          show the versions\n"
    "\n"
    "Two checkpoints:\n"
    "  weightwire diff step-10 step-11 -o 11.delta         what changed, and a file that carries it\n"
    "  weightwire apply step-10 11.delta -o copy-of-11     the same weights somewhere else\n"
    "  weightwire digest copy-of-11                        equal for equal weights\n"
    "\n"
    "'weightwire help COMMAND' explains a command. A TIME is like 500ms, 1.5s, 15m, 24h or 7d; a SIZE like 64KiB, "
    "1.5GB "
    "or 256MiB. A name in [] is the variable of the environment that sets an option; the option overrides it.\n";

// The exit statuses, for --help.
std::string ExitStatusHelp() {
  std::string text = "\nExit status:\n   0  success\n   1  unexpected: an error of weightwire itself\n";
  for (const ErrorKind& kind : AllErrorKinds())
    text += fmt::format("  {:>2}  {}: {}\n", kind.exit_status, kind.name, kind.meaning);
  return text + "  128 + N  ended by signal N\n";
}

int Fail(const std::string& sentence, ErrorCode code) {
  const ErrorKind& kind = KindOf(code);
  messages::Error(sentence, kind.name, kind.exit_status);
  return kind.exit_status;
}

int Finish(const Status& status) {
  if (!status.ok()) return Fail(status.error().message(), status.error().code());
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return Fail("cannot write to standard output", ErrorCode::kIo);
  }
  return 0;
}

messages::Style StyleOf(const GlobalOptions& options) {
  return {options.quiet, options.verbose, options.log_format == "json", options.json};
}

// The style of messages about arguments that could not be parsed: as far as they, or the environment, say it.
messages::Style StyleOf(std::span<const char* const> arguments) {
  messages::Style style;
  std::string format = SystemEnvironment()(EnvironmentName(settings::kLogFormat)).value_or("");
  const std::string option = OptionName(settings::kLogFormat);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--json") style.json_error = true;
    if (argument == option && i + 1 < arguments.size()) format = arguments[i + 1];
    if (argument.starts_with(option + "=")) format = argument.substr(option.size() + 1);
  }
  style.json = format == "json";
  return style;
}

// The help of the command that was named, or of the program.
std::string HelpOfParsed(const CLI::App& app) {
  const ProgramDescription described = Describe(app);
  const auto parsed = app.get_subcommands();
  const CommandDescription* command = parsed.empty() ? nullptr : described.Find(parsed.front()->get_name());
  return command == nullptr ? HelpText(described, HelpWidth()) : HelpText(described, *command, HelpWidth());
}

int ParseAndRun(const Program& program, GlobalOptions& options, int argc, const char* const* argv) {
  const std::span<const char* const> arguments(argv + std::min(argc, 1), argv + argc);
  messages::Configure(StyleOf(arguments));
  CLI::App app(program.description, program.name);
  app.footer(program.footer);
  app.set_version_flag("--version", fmt::format("{} {}", program.name, kVersion), "print the version and exit");
  app.require_subcommand(0, 1);
  app.option_defaults()->take_last();
  AddGlobalOptions(app, options);
  const std::vector<Command> commands = program.add_commands(app);
  for (const Command& command : commands) command.app->fallthrough();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", HelpOfParsed(app));
    return Finish(Ok());
  } catch (const CLI::Success& asked) {  // --version
    app.exit(asked);
    return Finish(Ok());
  } catch (const CLI::ParseError& error) {
    return Fail(UsageErrorSentence(app, Describe(app), error, arguments), ErrorCode::kInvalidArgument);
  }
  messages::Configure(StyleOf(options));
  for (const std::string& name : UnknownVariables()) messages::Warning(UnknownVariableWarning(name));
  for (const Command& command : commands) {
    if (command.app->parsed()) return Finish(command.run());
  }
  // No command: not what somebody wanted, so not on standard output.
  const int status = KindOf(ErrorCode::kInvalidArgument).exit_status;
  if (StyleOf(options).json || options.json) {
    return Fail(fmt::format("no command is named; see '{} --help'", program.name), ErrorCode::kInvalidArgument);
  }
  fmt::print(stderr, "{}", HelpOfParsed(app));
  return status;
}

}  // namespace

int RunProgram(const Program& program, GlobalOptions& options, int argc, const char* const* argv) {
  int status = 0;
  try {
    status = ParseAndRun(program, options, argc, argv);
  } catch (const std::bad_alloc&) {
    status = Fail("there is not enough memory", ErrorCode::kIo);
  } catch (const std::system_error& error) {  // of fmt::print, or of a thread that cannot be started
    const bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    status = Fail(no_thread ? "cannot start a thread: the limit of this user or container is reached"
                            : "cannot write to standard output",
                  ErrorCode::kIo);
  } catch (const std::exception& error) {
    status = kUnexpectedStatus;
    messages::Error(fmt::format("unexpected: {}", error.what()), kUnexpected, kUnexpectedStatus);
  }
  InterruptGuard::RaiseCaught();
  return status;
}

int RunWeightwire(int argc, const char* const* argv, const CommandTools& tools) {
  const auto add_commands = [&tools](CLI::App& app) -> std::vector<Command> {
    return {AddDiff(app, tools),      AddApply(app, tools),   AddInspect(app, tools), AddDigest(app, tools),
            AddInit(app, tools),      AddPublish(app, tools), AddLog(app, tools),     AddCheckout(app, tools),
            AddFollow(app, tools),    AddAnchor(app, tools),  AddGc(app, tools),      AddVerify(app, tools),
            AddFollowers(app, tools), AddCompletion(app),     AddHelp(app, tools),    AddVersion(app, tools)};
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
