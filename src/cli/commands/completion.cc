// weightwire completion SHELL: a script that completes commands and options.
#include "cli/completion.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/commands/commands.h"

namespace weightwire {

Command AddCompletion(CLI::App& app) {
  const auto shell = std::make_shared<std::string>();
  CLI::App& sub = *app.add_subcommand("completion", "print a script that completes commands and options in a shell");
  sub.add_option("SHELL", *shell, "the shell")->type_name("bash|zsh|fish")->required();
  sub.footer(
      "Examples:\n"
      "  source <(weightwire completion bash)            in ~/.bashrc\n"
      "  weightwire completion zsh > ~/.zfunc/_weightwire\n"
      "  weightwire completion fish > ~/.config/fish/completions/weightwire.fish");
  return {&sub, [&app, shell]() -> Status {
            WW_TRY(const std::string script, CompletionScript(Describe(app), *shell));
            fmt::print("{}", script);
            return Ok();
          }};
}

}  // namespace weightwire
