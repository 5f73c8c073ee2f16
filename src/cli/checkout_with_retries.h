// runner/checkout.h for a command: with progress, retries, and an end by Ctrl-C.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "cli/command_tools.h"
#include "cli/compute.h"
#include "cli/interrupt.h"
#include "log/run.h"

namespace weightwire {

Status CheckOutWithRetries(const Run& run, const KnownRecord& version, const std::filesystem::path& directory,
                           bool include_code, const Compute& compute, const InterruptGuard& interrupt,
                           const CommandTools& tools);

}  // namespace weightwire
