// Writes a version of a run into a new directory: a plain Hugging Face checkpoint, with nothing of weightwire in it.
#pragma once

#include <filesystem>
#include <optional>

#include "base/filesystem.h"
#include "base/random.h"
#include "base/result.h"
#include "follow/follower.h"
#include "follow/rebuild.h"
#include "log/run.h"

namespace weightwire {

// What it runs on; all must outlive the call.
struct CheckoutTools {
  FileSystem* files = nullptr;
  Random* random = nullptr;
  FollowerTools follower;
};

// Makes `directory`, whose name must be free (kInvalidArgument otherwise), with exactly that version. Until it is
// complete, its files are in a hidden directory beside it. After an error that directory is removed, unless it holds an
// earlier version already and the error may pass: then the error says so, and the next call for the same directory
// continues from that version. It also continues with what a crash leaves there. `after_step` decides about retries.
Status CheckOut(const Run& run, const KnownRecord& version, const std::filesystem::path& directory, bool include_code,
                const CheckoutTools& tools, const AfterStep& after_step);

// Fetches a version, by default the newest, into `target`, without a lease.
Status Load(const Run& run, std::optional<Version> version, Target& target, const FollowerTools& tools, Random& random,
            const AfterStep& after_step);

}  // namespace weightwire
