// RUN on the command line: where a run lies, and the run itself.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/command_tools.h"
#include "log/run.h"

namespace weightwire {

// RUN[@VERSION]. An '@' counts only before a number at the very end, so paths and URLs may hold others.
struct RunAddress {
  std::string location;
  std::optional<Version> version;
};
Result<RunAddress> ParseRunAddress(const std::string& text);

// A run and the store it lies in. Movable.
struct OpenedRun {
  std::unique_ptr<Store> store;
  Run run;
};
Result<OpenedRun> OpenRun(const std::string& location, const CommandTools& tools);

}  // namespace weightwire
