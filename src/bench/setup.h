// What a measurement of the protocol runs on.
#pragma once

#include <filesystem>

#include "base/filesystem.h"
#include "cli/checkpoints.h"
#include "cli/interrupt.h"

namespace weightwire {

// Nothing here is owned; all of it outlives the measurement.
struct BenchSetup {
  const std::filesystem::path& directory;  // empty at first; everything that is written goes there
  const Compute& compute;
  FileSystem& files;
  const InterruptGuard& interrupt;
};

}  // namespace weightwire
