// A version of a run, written into a new directory.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "cli/checkpoints.h"
#include "cli/command_tools.h"
#include "cli/interrupt.h"
#include "log/run.h"

namespace weightwire {

// Makes `directory`, a plain Hugging Face directory with exactly that version. Until it is complete, its files are in a
// hidden directory beside it, and the next call for the same directory continues with what a crash leaves there.
Status FetchVersion(const Run& run, const KnownRecord& version, const std::filesystem::path& directory,
                    bool include_code, const Compute& compute, const InterruptGuard& interrupt,
                    const CommandTools& tools);

}  // namespace weightwire
