// _core.Publisher and _core.Ticket: thin over runner/publisher_runner.h.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "arrays.h"
#include "binding.h"
#include "errors.h"
#include "machine.h"
#include "runner/init_run.h"
#include "runner/publisher_runner.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

using std::chrono::nanoseconds;

// Between two looks whether the user wants to interrupt.
constexpr nanoseconds kPatience = std::chrono::milliseconds(50);

std::optional<nanoseconds> ToDuration(std::optional<double> seconds) {
  if (!seconds.has_value()) return std::nullopt;
  constexpr double kLongest = 1e9;
  return std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(std::clamp(*seconds, 0.0, kLongest)));
}

// Calls done(slice) until it says true or the time is up; without the GIL, and open to Ctrl-C.
template <typename Done>
bool WaitUntil(std::optional<double> timeout, Done&& done) {
  const nb::gil_scoped_release release;
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

// What a publisher needs, in the order in which it is destroyed, last first.
struct Session {
  OpenedStore store;
  std::optional<Run> run;
  std::unique_ptr<PublisherRunner> runner;

  ~Session() {
    if (store.machine != nullptr) store.machine->sleeper.Stop();
  }
};

nb::dict ToDict(const TicketStatus& status) {
  nb::dict dict;
  dict["stage"] = std::string(NameOf(status.stage));
  dict["version"] = OrNone(status.version);
  dict["step"] = status.step;
  dict["bytes"] = status.bytes;
  dict["changed"] = status.changed;
  nb::dict times;
  const auto queued = status.times[static_cast<std::size_t>(TicketStage::kQueued)];
  for (std::size_t i = 0; i < status.times.size(); ++i) {
    if (!status.times[i].has_value() || !queued.has_value()) continue;
    const std::string name(NameOf(static_cast<TicketStage>(i)));
    times[name.c_str()] = std::chrono::duration<double>(*status.times[i] - *queued).count();
  }
  dict["seconds"] = times;
  dict["error"] = OrNone(status.error);
  return dict;
}

class PyTicket {
 public:
  PyTicket(std::shared_ptr<Session> session, Ticket ticket)
      : session_(std::move(session)), ticket_(std::move(ticket)) {}

  [[nodiscard]] nb::dict Look() const { return ToDict(session_->runner->Look(ticket_)); }

  // Whether it came to an end in time; raises if it failed.
  bool Wait(std::optional<double> timeout) const {
    const bool ended =
        WaitUntil(timeout, [&](nanoseconds slice) { return session_->runner->Wait(ticket_, slice).IsFinal(); });
    const TicketStatus status = session_->runner->Look(ticket_);
    if (status.stage == TicketStage::kFailed && status.error.has_value()) Raise(*status.error);
    return ended;
  }

 private:
  std::shared_ptr<Session> session_;
  Ticket ticket_;
};

class PyPublisher {
 public:
  PyPublisher(const std::string& url, const nb::dict& options) : session_(std::make_shared<Session>()) {
    const auto threads = nb::cast<std::size_t>(options["threads"]);
    const auto rate = nb::cast<std::uint64_t>(options["bytes_per_second"]);
    const auto single_writer = nb::cast<bool>(options["single_writer"]);
    const auto state = nb::cast<std::optional<std::string>>(options["state"]);
    const auto carried = nb::cast<std::optional<std::string>>(options["carried"]);
    PublisherOptions publisher;
    publisher.pipeline.anchor_every = nb::cast<std::uint64_t>(options["anchor_every"]);
    publisher.pipeline.anchor_percent = nb::cast<std::uint64_t>(options["anchor_percent"]);
    publisher.pipeline.max_versions = nb::cast<std::uint64_t>(options["spool_versions"]);
    publisher.skip_when_full = nb::cast<bool>(options["skip_when_full"]);
    publisher.anchor_files.adapter = nb::cast<bool>(options["adapter"]);
    publisher.base_in_file = nb::cast<bool>(options["base_in_file"]);
    publisher.drop_lost_versions = nb::cast<bool>(options["drop_lost_versions"]);
    if (state.has_value()) publisher.state_directory = *state;
    if (carried.has_value()) publisher.carried_directory = *carried;

    const nb::gil_scoped_release release;
    OkOrRaise(Open(url, threads, rate, single_writer, std::move(publisher)));
  }

  PyTicket Publish(const nb::list& tensors, const nb::dict& aliases, std::uint64_t step) {
    const PublishedState state = ToStateBits(tensors, aliases);
    PublisherRunner& runner = Runner();
    WaitUntil(std::nullopt, [&](nanoseconds slice) { return runner.WaitForRoom(slice); });
    const nb::gil_scoped_release release;
    return {session_, ValueOrRaise(runner.Publish(state.bits, step))};
  }

  bool Drain(std::optional<double> timeout) {
    PublisherRunner& runner = Runner();
    return WaitUntil(timeout, [&](nanoseconds slice) {
      return runner.Drain(slice) || runner.status().pipeline.stopped.has_value();
    });
  }

  void Close() {
    const nb::gil_scoped_release release;
    if (closed_) return;
    closed_ = true;
    session_->store.machine->sleeper.Stop();
    session_->runner->Stop();
  }

  [[nodiscard]] nb::dict Describe() const {
    const PublisherStatus status = session_->runner->status();
    const PipelineStatus& pipeline = status.pipeline;
    nb::dict dict;
    dict["committed"] = OrNone(pipeline.committed);
    dict["versions_waiting"] = pipeline.versions_waiting;
    dict["bytes_waiting"] = pipeline.bytes_waiting;
    dict["anchor_in_work"] = OrNone(pipeline.anchor_in_work);
    dict["newest_anchor"] =
        pipeline.newest_anchor.has_value() ? nb::object(nb::int_(pipeline.newest_anchor->name.version)) : nb::none();
    dict["last_error"] = OrNone(pipeline.last_error);
    dict["stopped"] = OrNone(pipeline.stopped);
    dict["anchor_error"] = OrNone(pipeline.anchor_error);
    nb::list warnings;
    for (const std::string& warning : status.warnings) warnings.append(warning);
    dict["warnings"] = warnings;
    const TraceCounts counts = session_->store.counts->Counts();
    dict["bytes_sent"] = counts.sent_bytes;
    dict["bytes_received"] = counts.received_bytes;
    return dict;
  }

  [[nodiscard]] std::string RunId() const { return ToHex(session_->run->wire().run); }

 private:
  Status Open(const std::string& url, std::size_t threads, std::uint64_t rate, bool single_writer,
              PublisherOptions options) {
    WW_TRY(std::shared_ptr<Machine> machine, Machine::Make(threads));
    WW_TRY(session_->store, OpenStoreFor(url, machine, rate));
    WW_TRY(session_->run, InitRun(*session_->store.store, single_writer, nullptr));
    if (options.state_directory.has_value()) {
      std::error_code error;
      std::filesystem::create_directories(*options.state_directory, error);
      if (error) {
        return Error(ErrorCode::kIo,
                     "cannot make the directory " + options.state_directory->string() + ": " + error.message());
      }
    }
    PublisherTools tools;
    tools.clock = &machine->clock;
    tools.random = &machine->random;
    tools.files = &machine->files;
    tools.kernels = machine->kernels;
    tools.pool = machine->pool.get();
    WW_TRY(session_->runner, PublisherRunner::Open(*session_->run, std::move(options), tools));
    return Ok();
  }

  PublisherRunner& Runner() {
    if (closed_) Raise({ErrorCode::kInvalidArgument, "the publisher is closed"});
    return *session_->runner;
  }

  std::shared_ptr<Session> session_;
  bool closed_ = false;
};

}  // namespace

void BindPublisher(nb::module_& module) {
  nb::class_<PyTicket>(module, "Ticket")
      .def("look", &PyTicket::Look)
      .def("wait", &PyTicket::Wait, nb::arg("timeout").none());
  nb::class_<PyPublisher>(module, "Publisher")
      .def(nb::init<const std::string&, const nb::dict&>())
      .def("publish", &PyPublisher::Publish)
      .def("drain", &PyPublisher::Drain, nb::arg("timeout").none())
      .def("close", &PyPublisher::Close)
      .def("status", &PyPublisher::Describe)
      .def_prop_ro("run_id", &PyPublisher::RunId);
}

}  // namespace weightwire::python
