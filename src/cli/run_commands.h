// The commands of a run: init, log, leases, verify and the others that take RUN.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "cli/command_options.h"
#include "cli/init.h"
#include "cli/leases.h"
#include "cli/log.h"
#include "cli/verify.h"
#include "cli/world.h"

namespace weightwire {

// Their options, as the command line fills them.
struct RunCommandOptions {
  InitOptions init;
  LogOptions log;
  LeasesOptions leases;
  VerifyOptions verify;
};

// Declares them. All three must outlive the commands returned.
std::vector<Command> AddRunCommands(CLI::App& app, RunCommandOptions& options, const World& world);

}  // namespace weightwire
