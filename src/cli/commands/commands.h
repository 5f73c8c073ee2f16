// All commands of `weightwire`. Each file of this folder is one command: its options, its help and its work.
#pragma once

#include "cli/command.h"
#include "cli/command_tools.h"

namespace weightwire {

// Each declares a command of `app`. `app` and `tools` must outlive what is returned.

// Two checkpoints, or a checkpoint and a delta:
Command AddDiff(CLI::App& app, const CommandTools& tools);
Command AddApply(CLI::App& app, const CommandTools& tools);
Command AddInspect(CLI::App& app, const CommandTools& tools);
Command AddDigest(CLI::App& app, const CommandTools& tools);

// A run:
Command AddInit(CLI::App& app, const CommandTools& tools);
Command AddPublish(CLI::App& app, const CommandTools& tools);
Command AddLog(CLI::App& app, const CommandTools& tools);
Command AddCheckout(CLI::App& app, const CommandTools& tools);
Command AddFollow(CLI::App& app, const CommandTools& tools);
Command AddAnchor(CLI::App& app, const CommandTools& tools);
Command AddGc(CLI::App& app, const CommandTools& tools);
Command AddVerify(CLI::App& app, const CommandTools& tools);
Command AddFollowers(CLI::App& app, const CommandTools& tools);

// The program itself. Added last, because they describe what the others declare:
Command AddCompletion(CLI::App& app);
Command AddHelp(CLI::App& app, const CommandTools& tools);
Command AddVersion(CLI::App& app, const CommandTools& tools);

}  // namespace weightwire
