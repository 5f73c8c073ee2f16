// weightwire init RUN: makes a run, after finding out whether the store keeps two writers apart.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/world.h"
#include "log/run.h"

namespace weightwire {

struct InitOptions {
  std::string run;
  // Go on where the store does not honour put-if-absent, and record that there is one writer.
  bool single_writer = false;
  bool json = false;
};

Status RunInit(const InitOptions& options, const World& world);

// Makes a run where there is none, with the same checks. `made`, if any, says whether it was made just now.
Result<Run> InitRun(Store& store, bool single_writer, bool* made);

}  // namespace weightwire
