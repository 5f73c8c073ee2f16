// weightwire log RUN: the versions of a run, what each cost to send, and who follows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/world.h"

namespace weightwire {

struct LogOptions {
  std::string run;
  std::optional<std::uint64_t> last;  // only so many of the newest versions
  bool watch = false;                 // go on with what comes
  bool json = false;
};

Status RunLog(const LogOptions& options, const World& world);

}  // namespace weightwire
