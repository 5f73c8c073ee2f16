#include "cli/checkout_with_retries.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "base/random.h"
#include "cli/retry.h"
#include "cli/terminal.h"
#include "runner/checkout.h"

namespace weightwire {

Status CheckOutWithRetries(const Run& run, const KnownRecord& version, const std::filesystem::path& directory,
                           bool include_code, const Compute& compute, const InterruptGuard& interrupt,
                           const CommandTools& tools) {
  SystemRandom random;
  SystemClock clock;
  const CheckoutTools checkout{tools.files, &random, {&clock, compute.kernels, compute.pool.get()}};
  const Progress progress(fmt::format("fetching version {}", version.record.version));
  TransientRetries retries(interrupt, tools.options->RetryFor());
  return CheckOut(run, version, directory, include_code, checkout, [&](const Result<FollowerStep>& step) {
    return retries.After(step.ok() ? Ok() : Status(step.error()));
  });
}

}  // namespace weightwire
