// weightwire init RUN: makes a run, after finding out whether the store keeps two writers apart.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/world.h"

namespace weightwire {

struct InitOptions {
  std::string run;
  // Go on where the store does not honour put-if-absent, and record that there is one writer.
  bool single_writer = false;
  bool json = false;
};

Status RunInit(const InitOptions& options, const World& world);

}  // namespace weightwire
