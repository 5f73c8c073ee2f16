// weightwire version: which version of weightwire this is.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "cli/commands/commands.h"
#include "cli/json.h"

namespace weightwire {

Command AddVersion(CLI::App& app, const CommandTools& tools) {
  CLI::App& sub = *app.add_subcommand("version", "print the version of weightwire");
  return {&sub, [&app, &tools]() -> Status {
            if (tools.options->json) {
              PrintJson({{"package_version", kVersion}});
            } else {
              fmt::print("{} {}\n", app.get_name(), kVersion);
            }
            return Ok();
          }};
}

}  // namespace weightwire
