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
#include "forks.h"
#include "machine.h"
#include "publishing.h"
#include "runner/init_run.h"
#include "runner/publisher_runner.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

using Session = PublishingSession<PublisherRunner>;

Status MakeDirectory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!error) return Ok();
  return Error(ErrorCode::kIo, "cannot make the directory " + directory.string() + ": " + error.message());
}

class PyPublisher {
 public:
  PyPublisher(const std::string& url, const nb::dict& options) : session_(MakeForThisProcess<Session>()) {
    const RunAccess access(url, options);
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
    publisher.rebuild = nb::cast<bool>(options["rebuild"]);
    if (state.has_value()) publisher.state_directory = *state;
    if (carried.has_value()) publisher.carried_directory = *carried;
    publisher.carry_code = nb::cast<bool>(options["carry_code"]);

    const nb::gil_scoped_release release;
    session_->Open(
        access,
        [&](Store& store) -> Result<Run> {
          WW_TRY(Run run, InitRun(store, access.single_writer, nullptr));
          if (state.has_value()) WW_RETURN_IF_ERROR(MakeDirectory(*state));
          return run;
        },
        [&](const Run& run, const PublisherTools& tools) {
          return PublisherRunner::Open(run, std::move(publisher), tools);
        });
  }

  PyTicket Publish(const nb::list& tensors, const nb::dict& aliases, std::uint64_t step, const nb::object& changed) {
    PublishedState state = ToStateBits(tensors, aliases);
    state.bits.unchanged = Unchanged(changed);
    const std::shared_ptr<PublisherRunner> runner = session_->OpenRunner();
    const nb::gil_scoped_release release;
    const auto turn = session_->TakeTurn();
    WaitUntilWithoutGil(std::nullopt, [&](nanoseconds slice) { return runner->WaitForRoom(slice); });
    return TicketOf(session_, ValueOrRaise(runner->Publish(state.bits, step)));
  }

  bool Drain(std::optional<double> timeout) {
    return session_->Drain(timeout, [](const PublisherRunner&) {});
  }

  void Close() { session_->Close(); }
  [[nodiscard]] nb::dict Describe() const { return session_->Describe(); }
  [[nodiscard]] std::string RunId() const { return session_->RunId(); }

 private:
  std::shared_ptr<Session> session_;
};

}  // namespace

void BindPublisher(nb::module_& module) {
  BindTicket(module);
  nb::class_<PyPublisher>(module, "Publisher")
      .def(nb::init<const std::string&, const nb::dict&>())
      .def("publish", &PyPublisher::Publish, nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
      .def("drain", &PyPublisher::Drain, nb::arg("timeout").none())
      .def("close", &PyPublisher::Close)
      .def("status", &PyPublisher::Describe)
      .def_prop_ro("run_id", &PyPublisher::RunId);
}

}  // namespace weightwire::python
