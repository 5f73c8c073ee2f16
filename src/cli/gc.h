// weightwire gc RUN: removes what the policy does not keep and no lease needs.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/world.h"
#include "log/gc.h"

namespace weightwire {

struct GcCommandOptions {
  std::string run;
  GcOptions gc;
  bool json = false;
};

Status RunGc(const GcCommandOptions& options, const World& world);

}  // namespace weightwire
