// _core.Publisher: thin over runner/publisher_runner.h.
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
#include "publishing.h"
#include "runner/init_run.h"
#include "runner/publisher_runner.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

// What a publisher needs, in the order in which it is destroyed, last first.
struct Session {
  OpenedStore store;
  std::optional<Run> run;
  std::unique_ptr<PublisherRunner> runner;

  ~Session() {
    if (store.machine != nullptr) store.machine->sleeper.Stop();
  }
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
    return TicketOf(session_, ValueOrRaise(runner.Publish(state.bits, step)));
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
    nb::dict dict = ToDict(session_->runner->status());
    AddCounts(dict, session_->store);
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
  BindTicket(module);
  nb::class_<PyPublisher>(module, "Publisher")
      .def(nb::init<const std::string&, const nb::dict&>())
      .def("publish", &PyPublisher::Publish)
      .def("drain", &PyPublisher::Drain, nb::arg("timeout").none())
      .def("close", &PyPublisher::Close)
      .def("status", &PyPublisher::Describe)
      .def_prop_ro("run_id", &PyPublisher::RunId);
}

}  // namespace weightwire::python
