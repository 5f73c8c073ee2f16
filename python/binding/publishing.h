// What the publishers of one process and of one rank among many share.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
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

nanobind::dict ToDict(const PublisherStatus& status);
void AddCounts(nanobind::dict& dict, const OpenedStore& store);
void BindTicket(nanobind::module_& module);

// How to get at a run, out of the options both publishers have.
struct RunAccess {
  RunAccess(std::string url, const nanobind::dict& options);

  std::string url;
  std::size_t threads;
  std::uint64_t bytes_per_second;
  bool single_writer;
};

// A publisher and what it needs. Members are destroyed in the order in which they can be, last first.
template <typename Runner>
class PublishingSession {
 public:
  PublishingSession() = default;
  PublishingSession(const PublishingSession&) = delete;
  PublishingSession& operator=(const PublishingSession&) = delete;
  ~PublishingSession() {
    if (store_.machine != nullptr) store_.machine->sleeper.Stop();
  }

  // `get_run(store)` gives the run, `open(run, tools)` the runner.
  template <typename GetRun, typename OpenRunner>
  Status Open(const RunAccess& access, const GetRun& get_run, const OpenRunner& open) {
    WW_TRY(const std::shared_ptr<Machine> machine, Machine::Make(access.threads));
    WW_TRY(store_, OpenStoreFor(access.url, machine, access.bytes_per_second));
    WW_TRY(run_, get_run(*store_.store));
    PublisherTools tools;
    tools.clock = &machine->clock;
    tools.random = &machine->random;
    tools.files = &machine->files;
    tools.kernels = machine->kernels;
    tools.pool = machine->pool.get();
    WW_TRY(runner_, open(*run_, tools));
    return Ok();
  }

  // Also after Close, as a ticket or a reader of the status may need it.
  [[nodiscard]] Runner& runner() const { return *runner_; }
  // Raises after Close.
  [[nodiscard]] Runner& OpenRunner() const {
    if (closed_) Raise({ErrorCode::kInvalidArgument, "the publisher is closed"});
    return *runner_;
  }

  void Close() {
    const nanobind::gil_scoped_release release;
    if (closed_) return;
    closed_ = true;
    store_.machine->sleeper.Stop();
    runner_->Stop();
  }

  [[nodiscard]] nanobind::dict Describe() const {
    nanobind::dict dict = ToDict(runner_->status());
    AddCounts(dict, store_);
    return dict;
  }
  [[nodiscard]] std::string RunId() const { return ToHex(run_->wire().run); }

 private:
  OpenedStore store_;
  std::optional<Run> run_;
  std::unique_ptr<Runner> runner_;
  bool closed_ = false;
};

// Keeps the session as long as it lives itself.
template <typename Runner>
PyTicket TicketOf(std::shared_ptr<PublishingSession<Runner>> session, Ticket ticket) {
  return PyTicket([session = std::move(session), ticket = std::move(ticket)](nanoseconds at_most) {
    return session->runner().Wait(ticket, at_most);
  });
}

}  // namespace weightwire::python
