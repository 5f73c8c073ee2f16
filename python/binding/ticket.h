// _core.Ticket: the result of one call of publish. Also how this module waits, open to Ctrl-C.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "errors.h"
#include "interruptible.h"
#include "publish/ticket.h"
#include "runner/policy.h"

namespace weightwire::python {

inline std::optional<nanoseconds> ToDuration(std::optional<double> seconds) {
  if (!seconds.has_value()) return std::nullopt;
  constexpr double kLongest = 1e9;
  return std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(std::clamp(*seconds, 0.0, kLongest)));
}

// Calls done(slice) until it returns true or the time is up; open to Ctrl-C. REQUIRES: the GIL is not held.
template <typename Done>
bool WaitUntil(std::optional<double> timeout, Done&& done) {
  const auto limit = ToDuration(timeout);
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    nanoseconds slice = kInterruptCheckInterval;
    if (limit.has_value()) slice = std::min(slice, *limit - (std::chrono::steady_clock::now() - start));
    if (done(std::max(slice, nanoseconds(0)))) return true;
    if (limit.has_value() && std::chrono::steady_clock::now() - start >= *limit) return false;
    CheckSignals();
  }
}

class PyTicket {
 public:
  using Wait = std::function<TicketStatus(nanoseconds at_most)>;
  // `wait` keeps alive what it needs; with 0 it returns at once.
  explicit PyTicket(Wait wait) : wait_(std::move(wait)) {}

  [[nodiscard]] nanobind::dict Look() const;
  // Returns whether it ended in time; raises if it failed.
  [[nodiscard]] bool WaitFor(std::optional<double> timeout) const;

 private:
  Wait wait_;
};

void BindTicket(nanobind::module_& module);

}  // namespace weightwire::python
