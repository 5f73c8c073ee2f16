// The commands that take RUN: init, publish, log, checkout, follow, anchor, gc, verify, leases.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "cli/anchor.h"
#include "cli/checkout.h"
#include "cli/command_options.h"
#include "cli/follow.h"
#include "cli/gc.h"
#include "cli/init.h"
#include "cli/leases.h"
#include "cli/log.h"
#include "cli/publish.h"
#include "cli/verify.h"
#include "cli/world.h"

namespace weightwire {

// Their options, as the command line fills them.
struct RunCommandOptions {
  InitOptions init;
  PublishOptions publish;
  LogOptions log;
  CheckoutOptions checkout;
  FollowOptions follow;
  AnchorCommandOptions anchor;
  GcCommandOptions gc;
  VerifyOptions verify;
  LeasesOptions leases;
};

// Declares them. All three must outlive the commands returned.
std::vector<Command> AddRunCommands(CLI::App& app, RunCommandOptions& options, const World& world);

}  // namespace weightwire
