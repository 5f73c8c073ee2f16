// weightwire checkout RUN[@VERSION] DIR: a version as a plain directory that any tool can load.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "cli/interrupt.h"
#include "cli/load.h"
#include "cli/world.h"
#include "log/run.h"

namespace weightwire {

struct CheckoutOptions {
  std::string run;
  std::filesystem::path directory;
  bool carry_code = false;
  std::size_t threads = 0;
  bool json = false;
};

Status RunCheckout(const CheckoutOptions& options, const World& world);

// Brings exactly that version into a new directory. While it is on its way it lies beside it under a hidden name;
// what a crash leaves there is used when the same is asked for again.
Status CheckOut(const Run& run, const KnownRecord& version, const std::filesystem::path& directory, bool carry_code,
                const Machine& machine, const InterruptGuard& interrupt, FileSystem& files);

}  // namespace weightwire
