// weightwire leases RUN: who follows the run, what they hold, and what they keep from being removed.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/world.h"

namespace weightwire {

struct LeasesOptions {
  std::string run;
  bool json = false;
};

Status RunLeases(const LeasesOptions& options, const World& world);

}  // namespace weightwire
