// What the publishers of one process and of one rank among many share.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "errors.h"
#include "interruptible.h"
#include "machine.h"
#include "publish/publisher.h"

namespace weightwire::python {

inline std::optional<nanoseconds> ToDuration(std::optional<double> seconds) {
  if (!seconds.has_value()) return std::nullopt;
  constexpr double kLongest = 1e9;
  return std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(std::clamp(*seconds, 0.0, kLongest)));
}

// Calls done(slice) until it says true or the time is up; open to Ctrl-C. REQUIRES: the GIL is not held.
template <typename Done>
bool WaitUntilWithoutGil(std::optional<double> timeout, Done&& done) {
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
template <typename Done>
bool WaitUntil(std::optional<double> timeout, Done&& done) {
  const nanobind::gil_scoped_release release;
  return WaitUntilWithoutGil(timeout, std::forward<Done>(done));
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

// Asks `changed()`, which says what has changed or None; nothing to ask if it is None. REQUIRES: it outlives the call.
std::function<Status()> Unchanged(const nanobind::object& changed);

// How to get at a run, out of the options both publishers have.
struct RunAccess {
  RunAccess(std::string url, const nanobind::dict& options);

  std::string url;
  std::size_t threads;
  std::uint64_t bytes_per_second;
  bool single_writer;
};

// A publisher and what it needs. Members are destroyed in the order in which they can be, last first.
//
// Thread safety: all calls, by any thread; without the GIL where they may wait.
template <typename Runner>
class PublishingSession {
 public:
  PublishingSession() = default;
  PublishingSession(const PublishingSession&) = delete;
  PublishingSession& operator=(const PublishingSession&) = delete;
  ~PublishingSession() {
    if (store_.machine != nullptr) store_.machine->sleeper.Stop();
  }

  // `get_run(store)` gives the run, `open(run, tools)` the runner. Open to Ctrl-C.
  template <typename GetRun, typename OpenRunner>
  void Open(const RunAccess& access, const GetRun& get_run, const OpenRunner& open) {
    const std::shared_ptr<Machine> machine = ValueOrRaise(Machine::Make(access.threads));
    RunInterruptibly(machine->sleeper, [&]() -> Status {
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
    });
  }

  // Null once it is closed. Who holds it may go on with it; after Close, nothing moves there any more.
  [[nodiscard]] std::shared_ptr<Runner> runner() const {
    const std::lock_guard lock(mutex_);
    return runner_;
  }
  // Raises after Close.
  [[nodiscard]] std::shared_ptr<Runner> OpenRunner() const {
    std::shared_ptr<Runner> runner = this->runner();
    if (runner == nullptr) Raise({ErrorCode::kInvalidArgument, "the publisher is closed"});
    return runner;
  }

  // One thread at a time publishes; the others wait here, open to Ctrl-C. REQUIRES: the GIL is not held.
  [[nodiscard]] std::unique_lock<std::timed_mutex> TakeTurn() {
    std::unique_lock turn(publishing_, std::defer_lock);
    while (!turn.try_lock_for(kPatience)) CheckSignals();
    return turn;
  }

  // Gives back memory and the state directory's lock, even if tickets are kept.
  void Close() {
    const nanobind::gil_scoped_release release;
    const std::lock_guard closing(closing_);
    const std::shared_ptr<Runner> runner = this->runner();
    if (runner == nullptr) return;
    store_.machine->sleeper.Stop();
    runner->Stop();
    const std::lock_guard lock(mutex_);
    last_status_ = runner->status();
    runner_.reset();
  }

  // What became of a ticket: after Close, it is final.
  [[nodiscard]] TicketStatus Wait(const Ticket& ticket, nanoseconds at_most) const {
    if (const std::shared_ptr<Runner> runner = this->runner(); runner != nullptr) return runner->Wait(ticket, at_most);
    TicketStatus status = *ticket;
    if (!status.IsFinal()) {
      status.stage = TicketStage::kFailed;
      status.error = Error(ErrorCode::kUnavailable,
                           "the publisher was closed before this version was in the bucket; with a state directory, "
                           "the next publisher that uses it sends what was spooled");
    }
    return status;
  }

  // Raises what ended the publisher; false if the time is up or it was closed. `look` may raise too.
  template <typename Look>
  bool Drain(std::optional<double> timeout, const Look& look) const {
    const std::shared_ptr<Runner> runner = OpenRunner();
    bool closed = false;
    const bool drained = WaitUntil(timeout, [&](nanoseconds slice) {
      const bool idle = runner->Drain(slice);
      if (const auto stopped = runner->status().pipeline.stopped; stopped.has_value()) Raise(*stopped);
      if (!idle) look(*runner);
      closed = this->runner() == nullptr;
      return idle || closed;
    });
    return drained && !closed;
  }

  [[nodiscard]] nanobind::dict Describe() const {
    const std::shared_ptr<Runner> runner = this->runner();
    nanobind::dict dict = ToDict(runner != nullptr ? runner->status() : last_status_);
    AddCounts(dict, store_);
    return dict;
  }
  [[nodiscard]] std::string RunId() const { return ToHex(run_->id()); }

 private:
  OpenedStore store_;
  std::optional<Run> run_;
  std::timed_mutex publishing_;
  std::mutex closing_;
  mutable std::mutex mutex_;  // the rest
  std::shared_ptr<Runner> runner_;
  PublisherStatus last_status_;
};

// Keeps the session as long as it lives itself.
template <typename Runner>
PyTicket TicketOf(std::shared_ptr<PublishingSession<Runner>> session, Ticket ticket) {
  return PyTicket([session = std::move(session), ticket = std::move(ticket)](nanoseconds at_most) {
    return session->Wait(ticket, at_most);
  });
}

}  // namespace weightwire::python
