// The benchmarks of `weightwire-bench`.
#pragma once

#include "base/filesystem.h"
#include "cli/command.h"

namespace weightwire {

// Each declares a command of `app`. `app` and `files` must outlive what is returned.
Command AddCodecBench(CLI::App& app);
Command AddWireBench(CLI::App& app, FileSystem& files);

}  // namespace weightwire
