// The failure policy, and the defaults that the package shares with the command, from the policy.h of their folders.
#include "publish/policy.h"

#include <nanobind/nanobind.h>

#include <chrono>

#include "base/failure_policy.h"
#include "binding.h"
#include "runner/policy.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

using Seconds = std::chrono::duration<double>;

}  // namespace

void BindPolicy(nb::module_& module) {
  module.attr("POLL_SECONDS") = Seconds(kPollInterval).count();
  module.attr("ANCHOR_EVERY_VERSIONS") = kAnchorEveryVersions;
  module.attr("ANCHOR_EVERY_PERCENT") = kAnchorEveryPercent;
  module.attr("MAX_PENDING_VERSIONS") = kMaxWaitingVersions;
  module.attr("RANK_DEADLINE_SECONDS") = Seconds(kRankDeadline).count();
  nb::class_<Backoff>(module, "Backoff")
      .def(nb::new_([](double first, double last) {
        const auto of = [](double seconds) {
          return std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(seconds));
        };
        return Backoff({.first = of(first), .last = of(last)});
      }))
      .def("next", [](Backoff& backoff) { return Seconds(backoff.Next()).count(); })
      .def("reset", &Backoff::Reset);
}

}  // namespace weightwire::python
