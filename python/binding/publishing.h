// What the publishers of one process and of one rank among many share.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "errors.h"
#include "machine.h"
#include "publish/publisher.h"

namespace weightwire::python {

using std::chrono::nanoseconds;

// Between two looks whether the user wants to interrupt.
inline constexpr nanoseconds kPatience = std::chrono::milliseconds(50);

inline std::optional<nanoseconds> ToDuration(std::optional<double> seconds) {
  if (!seconds.has_value()) return std::nullopt;
  constexpr double kLongest = 1e9;
  return std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(std::clamp(*seconds, 0.0, kLongest)));
}

// Calls done(slice) until it says true or the time is up; without the GIL, and open to Ctrl-C.
template <typename Done>
bool WaitUntil(std::optional<double> timeout, Done&& done) {
  const nanobind::gil_scoped_release release;
  const auto limit = ToDuration(timeout);
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    nanoseconds slice = kPatience;
    if (limit.has_value()) slice = std::min(slice, *limit - (std::chrono::steady_clock::now() - start));
    if (done(std::max(slice, nanoseconds(0)))) return true;
    if (limit.has_value() && std::chrono::steady_clock::now() - start >= *limit) return false;
    CheckSignals();
  }
}

// What became of a call of publish.
class PyTicket {
 public:
  using Wait = std::function<TicketStatus(nanoseconds at_most)>;
  // `wait` keeps alive what it needs; with 0 it looks.
  explicit PyTicket(Wait wait) : wait_(std::move(wait)) {}

  [[nodiscard]] nanobind::dict Look() const;
  // Whether it came to an end in time; raises if it failed.
  [[nodiscard]] bool WaitFor(std::optional<double> timeout) const;

 private:
  Wait wait_;
};

// `session` has a runner.
template <typename Session>
PyTicket TicketOf(std::shared_ptr<Session> session, Ticket ticket) {
  return PyTicket([session = std::move(session), ticket = std::move(ticket)](nanoseconds at_most) {
    return session->runner->Wait(ticket, at_most);
  });
}

nanobind::dict ToDict(const PublisherStatus& status);
void AddCounts(nanobind::dict& dict, const OpenedStore& store);
void BindTicket(nanobind::module_& module);

}  // namespace weightwire::python
