#include "publishing.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>

namespace nb = nanobind;

namespace weightwire::python {
namespace {

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

}  // namespace

nb::dict PyTicket::Look() const { return ToDict(wait_(nanoseconds(0))); }

bool PyTicket::WaitFor(std::optional<double> timeout) const {
  const bool ended = WaitUntil(timeout, [&](nanoseconds slice) { return wait_(slice).IsFinal(); });
  const TicketStatus status = wait_(nanoseconds(0));
  if (status.stage == TicketStage::kFailed && status.error.has_value()) Raise(*status.error);
  return ended;
}

nb::dict ToDict(const PublisherStatus& status) {
  nb::dict dict;
  const PipelineStatus& pipeline = status.pipeline;
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
  return dict;
}

void AddCounts(nb::dict& dict, const OpenedStore& store) {
  const TraceCounts counts = store.counts->Counts();
  dict["bytes_sent"] = counts.sent_bytes;
  dict["bytes_received"] = counts.received_bytes;
}

RunAccess::RunAccess(std::string run_url, const nb::dict& options)
    : url(std::move(run_url)),
      threads(nb::cast<std::size_t>(options["threads"])),
      bytes_per_second(nb::cast<std::uint64_t>(options["bytes_per_second"])),
      single_writer(nb::cast<bool>(options["single_writer"])) {}

std::function<Status()> Unchanged(const nb::object& changed) {
  if (changed.is_none()) return nullptr;
  return [&changed]() -> Status {
    const nb::gil_scoped_acquire acquire;
    try {
      const nb::object what = changed();
      if (what.is_none()) return Ok();
      return Error(ErrorCode::kInvalidArgument, nb::cast<std::string>(what));
    } catch (const std::exception& error) {  // the core knows none
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("cannot tell whether the weights were written to meanwhile: {}", error.what()));
    }
  };
}

void BindTicket(nb::module_& module) {
  nb::class_<PyTicket>(module, "Ticket")
      .def("look", &PyTicket::Look)
      .def("wait", &PyTicket::WaitFor, nb::arg("timeout").none());
}

}  // namespace weightwire::python
