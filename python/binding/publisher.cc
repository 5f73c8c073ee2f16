// _core.Publisher, and _core.RankPublisher, which adds the board of several ranks: thin over runner/publisher_runner.h.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "arrays.h"
#include "binding.h"
#include "errors.h"
#include "forks.h"
#include "gil.h"
#include "interruptible.h"
#include "prepared_state.h"
#include "process_tools.h"
#include "publish/shards.h"
#include "runner/init_run.h"
#include "runner/publisher_runner.h"
#include "runner/state_directory.h"
#include "ticket.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

nb::dict ToDict(const PublisherStatus& status) {
  nb::dict dict;
  dict["version"] = OrNone(status.version);
  dict["pending_versions"] = status.pending_versions;
  dict["pending_bytes"] = status.pending_bytes;
  dict["anchor_version"] = status.anchor.has_value() ? nb::object(nb::int_(status.anchor->name.version)) : nb::none();
  dict["anchor_in_progress"] = OrNone(status.anchor_in_progress);
  dict["last_error"] = OrNone(status.last_error);
  dict["anchor_error"] = OrNone(status.anchor_error);
  dict["fatal_error"] = OrNone(status.fatal_error);
  dict["warnings"] = nb::tuple(nb::cast(status.warnings));
  return dict;
}

// Calls `changed()`, which returns what has changed or None; nullptr if it is None. REQUIRES: it outlives the call.
std::function<Status()> Unchanged(const nb::object& changed) {
  if (changed.is_none()) return nullptr;
  return [&changed]() -> Status {
    const GilAcquired acquire;
    try {
      const nb::object what = CallPython([&] { return changed(); });
      if (what.is_none()) return Ok();
      return Error(ErrorCode::kInvalidArgument, nb::cast<std::string>(what));
    } catch (const std::exception& error) {  // the core knows none
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("cannot tell whether the weights were written to meanwhile: {}", error.what()));
    }
  };
}

// Lets go of the model's memory at the end of a call, however it ends. REQUIRES: the GIL is held then.
class ReleasedAfter {
 public:
  explicit ReleasedAfter(PreparedState& prepared) : prepared_(prepared) {}
  ~ReleasedAfter() { prepared_.Release(); }
  ReleasedAfter(const ReleasedAfter&) = delete;
  ReleasedAfter& operator=(const ReleasedAfter&) = delete;

 private:
  PreparedState& prepared_;
};

PublisherOptions ToOptions(const nb::dict& options) {
  PublisherOptions publisher;
  publisher.anchor_every = nb::cast<std::uint64_t>(options["anchor_every"]);
  publisher.anchor_percent = nb::cast<std::uint64_t>(options["anchor_percent"]);
  publisher.max_versions = nb::cast<std::uint64_t>(options["max_pending_versions"]);
  publisher.anchor_files.adapter = nb::cast<bool>(options["adapter"]);
  publisher.rebuild = nb::cast<bool>(options["rebuild"]);
  publisher.allow_new_model = nb::cast<bool>(options["allow_new_model"]);
  publisher.include_code = nb::cast<bool>(options["include_code"]);
  const auto extra_files = nb::cast<std::optional<std::string>>(options["extra_files"]);
  if (extra_files.has_value()) publisher.extra_files = *extra_files;
  if (options.contains("rank")) {
    GroupOptions& group = publisher.group.emplace();
    group.rank = nb::cast<std::uint64_t>(options["rank"]);
    group.ranks = nb::cast<std::uint64_t>(options["ranks"]);
    group.deadline = ToDuration(nb::cast<double>(options["rank_timeout"])).value();
    return publisher;
  }
  publisher.skip_when_full = nb::cast<bool>(options["skip_when_full"]);
  publisher.base_on_disk = nb::cast<bool>(options["base_on_disk"]);
  publisher.discard_conflicting = nb::cast<bool>(options["discard_conflicting"]);
  const auto state_dir = nb::cast<std::optional<std::string>>(options["state_dir"]);
  if (state_dir.has_value()) publisher.state_directory = *state_dir;
  return publisher;
}

// A publisher and what it needs. Members are destroyed in the order in which they can be, last first.
//
// Thread safety: all calls, by any thread. REQUIRES: the GIL is not held.
class Session {
 public:
  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    if (store_.process != nullptr) store_.process->sleeper.Stop();
  }

  void Open(const std::string& url, const nb::dict& options, const std::string& start) {
    const auto bytes_per_second = nb::cast<std::uint64_t>(options["max_bytes_per_second"]);
    const auto single_writer = nb::cast<bool>(options["single_writer"]);
    PublisherOptions publisher = ToOptions(options);
    const std::shared_ptr<ProcessTools> process =
        ValueOrRaise(ProcessTools::Make(nb::cast<std::size_t>(options["threads"])));
    // One rank makes the run; the others open it once it is there.
    const bool makes_run = !publisher.group.has_value() || publisher.group->rank == 0;
    const GilReleased release;
    RunInterruptibly(process->sleeper, [&]() -> Status {
      WW_TRY(store_, OpenStoreFor(url, process, bytes_per_second));
      WW_TRY(run_, makes_run ? InitRun(*store_.store, single_writer, nullptr) : Run::Open(*store_.store));
      if (publisher.state_directory.has_value()) {
        WW_TRY(publisher.state_directory, StateDirectory(publisher.state_directory, run_->id()));
      }
      PublisherTools tools;
      tools.clock = &process->clock;
      tools.random = &process->random;
      tools.files = &process->files;
      tools.kernels = process->kernels;
      tools.pool = process->pool.get();
      WW_TRY(runner_, PublisherRunner::Open(*run_, std::move(publisher), tools, start));
      return Ok();
    });
  }

  // Null once it is closed. A caller may keep using it; after Close it does nothing any more.
  [[nodiscard]] std::shared_ptr<PublisherRunner> runner() const {
    const std::lock_guard lock(mutex_);
    return runner_;
  }
  // Raises after Close.
  [[nodiscard]] std::shared_ptr<PublisherRunner> OpenRunner() const {
    std::shared_ptr<PublisherRunner> runner = this->runner();
    if (runner == nullptr) Raise({ErrorCode::kInvalidArgument, "the publisher is closed"});
    return runner;
  }

  // Ctrl-C ends a wait for room. REQUIRES: one thread at a time calls this and the runner's Refuse, as the package
  // does.
  Result<Ticket> Publish(const StateBits& bits, std::uint64_t step) {
    return OpenRunner()->Publish(bits, step, CheckSignals);
  }

  // Frees memory and the state directory's lock, even if tickets are kept.
  void Close() {
    const std::lock_guard closing(closing_);
    const std::shared_ptr<PublisherRunner> runner = this->runner();
    if (runner == nullptr) return;
    store_.process->sleeper.Stop();
    runner->Stop();
    const std::lock_guard lock(mutex_);
    last_status_ = runner->status();
    runner_.reset();
  }

  // After Close a ticket is final.
  [[nodiscard]] TicketStatus Wait(const Ticket& ticket, nanoseconds at_most) const {
    if (const auto runner = this->runner(); runner != nullptr) return runner->Wait(ticket, at_most);
    TicketStatus status = *ticket;
    if (!status.IsFinal()) {
      status.stage = TicketStage::kFailed;
      status.error = Error(ErrorCode::kUnavailable,
                           "the publisher was closed before this version was in the bucket; with state_dir=, the next "
                           "publisher that uses the same directory sends it");
    }
    return status;
  }

  // Raises what ended the publisher, or why rank 0 cannot be reached; false if the time is up or it was closed.
  bool Flush(std::optional<double> timeout) const {
    const std::shared_ptr<PublisherRunner> runner = OpenRunner();
    bool closed = false;
    const bool flushed = WaitUntil(timeout, [&](nanoseconds slice) {
      const bool idle = runner->Flush(slice);
      if (const auto stopped = runner->status().fatal_error; stopped.has_value()) Raise(*stopped);
      if (const auto why = runner->disconnected(); !idle && why.has_value()) Raise(*why);
      closed = this->runner() == nullptr;
      return idle || closed;
    });
    return flushed && !closed;
  }

  [[nodiscard]] PublisherStatus status() const {
    const std::shared_ptr<PublisherRunner> runner = this->runner();
    return runner != nullptr ? runner->status() : last_status_;
  }
  [[nodiscard]] TraceCounts counts() const { return store_.counts->Counts(); }
  [[nodiscard]] std::string RunId() const { return ToHex(run_->id()); }

 private:
  OpenedStore store_;
  std::optional<Run> run_;
  std::mutex closing_;
  mutable std::mutex mutex_;  // the rest
  std::shared_ptr<PublisherRunner> runner_;
  PublisherStatus last_status_;
};

class PyPublisher {
 public:
  PyPublisher(const std::string& url, const nb::dict& options) : PyPublisher(url, options, "") {}

  PyTicket Publish(PreparedState& prepared, std::uint64_t step, const nb::object& changed) {
    const ReleasedAfter released(prepared);
    StateBits& bits = prepared.bits();
    bits.unchanged = Unchanged(changed);
    const GilReleased release;
    return TicketOf(ValueOrRaise(session_->Publish(bits, step)));
  }
  bool Flush(std::optional<double> timeout) {
    const GilReleased release;
    return session_->Flush(timeout);
  }
  void Close() {
    const GilReleased release;
    session_->Close();
  }
  [[nodiscard]] nb::dict Describe() const {
    nb::dict dict = ToDict(session_->status());
    const TraceCounts counts = session_->counts();
    dict["bytes_sent"] = counts.sent_bytes;
    dict["bytes_received"] = counts.received_bytes;
    return dict;
  }
  [[nodiscard]] std::string RunId() const { return session_->RunId(); }

 protected:
  PyPublisher(const std::string& url, const nb::dict& options, const std::string& start)
      : session_(MakeForThisProcess<Session>()) {
    session_->Open(url, options, start);
  }
  // The ticket keeps the session.
  [[nodiscard]] PyTicket TicketOf(Ticket ticket) const {
    return PyTicket([session = session_, ticket = std::move(ticket)](nanoseconds at_most) {
      return session->Wait(ticket, at_most);
    });
  }
  [[nodiscard]] Session& session() const { return *session_; }

 private:
  std::shared_ptr<Session> session_;
};

// All tensors as (name, dtype, shape), and what this rank sends of them as (name, start, extent).
std::shared_ptr<const Shards> ToShards(const nb::list& tensors, const nb::dict& aliases, const nb::list& boxes) {
  auto layout = std::make_shared<const Layout>(ToLayout(tensors, aliases));
  std::vector<Shard> shards;
  for (const nb::handle box : boxes) {
    const auto tensor = layout->Find(nb::cast<std::string>(box[0]));
    if (!tensor.has_value()) Raise({ErrorCode::kInvalidArgument, "a shard is of a tensor that is not in the layout"});
    shards.push_back(
        {*tensor, Box{nb::cast<std::vector<std::uint64_t>>(box[1]), nb::cast<std::vector<std::uint64_t>>(box[2])}});
  }
  return ValueOrRaise(Shards::Make(std::move(layout), std::move(shards)));
}

// One of several ranks. The board is Python's.
class PyRankPublisher final : public PyPublisher {
 public:
  PyRankPublisher(const std::string& url, const nb::dict& options, const nb::list& tensors, const nb::dict& aliases,
                  const nb::list& boxes, const std::string& start)
      : PyPublisher(url, options, start), shards_(ToShards(tensors, aliases, boxes)) {}

  [[nodiscard]] std::string Start() const { return session().OpenRunner()->start(); }

  // The rank's own shards, by name. If anything fails here, the other ranks learn of it: a call that they made and this
  // rank did not would leave them one call apart for good.
  PyTicket Publish(PreparedState& prepared, std::uint64_t step, const nb::object& changed) {
    const ReleasedAfter released(prepared);
    std::optional<Result<Ticket>> published;
    try {
      StateBits& bits = BitsOf(prepared);
      bits.unchanged = Unchanged(changed);
      const GilReleased release;
      published = session().Publish(bits, step);  // refuses its own errors
    } catch (const std::exception& error) {
      Refuse(step, error.what());
      throw;
    }
    return TicketOf(ValueOrRaise(std::move(*published)));
  }

  void Refuse(std::uint64_t step, const std::string& why) {
    WithRunner([&](PublisherRunner& runner) { runner.Refuse(step, {ErrorCode::kInvalidArgument, why}); });
  }

  // (messages to put, keys of messages to deliver, keys to remove). The first and the last are returned again until
  // they are done.
  nb::tuple BoardWork(double at_most) {
    const PublisherRunner::BoardWork work =
        WithRunner([&](PublisherRunner& runner) { return runner.NextBoardWork(ToDuration(at_most).value()); });
    nb::list outgoing;
    for (const BoardMessage& message : work.outgoing) outgoing.append(nb::make_tuple(message.key, message.text));
    return nb::make_tuple(outgoing, nb::cast(work.wanted), nb::cast(work.unneeded));
  }
  void BoardDone() {
    WithRunner([](PublisherRunner& runner) { runner.BoardDone(); });
  }
  void Deliver(const std::string& key, const std::string& text) {
    WithRunner([&](PublisherRunner& runner) { runner.Deliver(key, text); });
  }
  void SetDisconnected(const std::string& why) {
    WithRunner([&](PublisherRunner& runner) { runner.SetDisconnected({ErrorCode::kUnavailable, why}); });
  }
  void SetConnected() {
    WithRunner([](PublisherRunner& runner) { runner.SetConnected(); });
  }

 private:
  // Calls `function` without the GIL; raises after Close.
  template <typename Function>
  std::invoke_result_t<Function, PublisherRunner&> WithRunner(const Function& function) {
    const std::shared_ptr<PublisherRunner> runner = session().OpenRunner();
    const GilReleased release;
    return function(*runner);
  }
  [[nodiscard]] StateBits& BitsOf(PreparedState& prepared) const {
    StateBits& bits = prepared.bits();
    if (!(*bits.layout == *shards_->own())) {
      Raise({ErrorCode::kInvalidArgument,
             "the tensors, types or shards of this rank are others than when the publisher was made: make a new one"});
    }
    bits.shards = shards_;
    return bits;
  }

  const std::shared_ptr<const Shards> shards_;
};

}  // namespace

void BindPublisher(nb::module_& module) {
  BindTicket(module);
  nb::class_<PyPublisher>(module, "Publisher")
      .def(nb::init<const std::string&, const nb::dict&>())
      .def("publish", &PyPublisher::Publish, nb::arg(), nb::arg(), nb::arg().none())
      .def("flush", &PyPublisher::Flush, nb::arg("timeout").none())
      .def("close", &PyPublisher::Close)
      .def("status", &PyPublisher::Describe)
      .def_prop_ro("run_id", &PyPublisher::RunId);
  nb::class_<PyRankPublisher, PyPublisher>(module, "RankPublisher")
      .def(nb::init<const std::string&, const nb::dict&, const nb::list&, const nb::dict&, const nb::list&,
                    const std::string&>())
      .def("start", &PyRankPublisher::Start)
      .def("publish", &PyRankPublisher::Publish, nb::arg(), nb::arg(), nb::arg().none())
      .def("refuse", &PyRankPublisher::Refuse)
      .def("board_work", &PyRankPublisher::BoardWork)
      .def("board_done", &PyRankPublisher::BoardDone)
      .def("deliver", &PyRankPublisher::Deliver)
      .def("set_disconnected", &PyRankPublisher::SetDisconnected)
      .def("set_connected", &PyRankPublisher::SetConnected);
}

}  // namespace weightwire::python
