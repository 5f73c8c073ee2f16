// The benchmarks of `weightwire-bench`.
#pragma once

#include "base/filesystem.h"
#include "cli/command.h"

namespace weightwire {

// Each declares a command of `app`. `app`, `files` and `global` must outlive what is returned.
Command AddCodecBench(CLI::App& app, const GlobalOptions& global);
Command AddCatchUpBench(CLI::App& app, const GlobalOptions& global);
Command AddWireBench(CLI::App& app, FileSystem& files, const GlobalOptions& global);

}  // namespace weightwire
