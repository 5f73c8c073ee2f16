#include "ticket.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>

#include "gil.h"

namespace nb = nanobind;

namespace weightwire::python {

nb::dict PyTicket::Look() const {
  const TicketStatus status = wait_(nanoseconds(0));
  nb::dict dict;
  dict["stage"] = std::string(NameOf(status.stage));
  dict["version"] = OrNone(status.version);
  dict["step"] = status.step;
  dict["delta_bytes"] = OrNone(status.delta_bytes);
  dict["anchor_bytes"] = OrNone(status.anchor_bytes);
  dict["changed_elements"] = status.changed;
  nb::dict times;
  const auto queued = status.times[static_cast<std::size_t>(TicketStage::kQueued)];
  for (std::size_t i = 0; i < status.times.size(); ++i) {
    if (!status.times[i].has_value() || !queued.has_value()) continue;
    const std::string name(NameOf(static_cast<TicketStage>(i)));
    times[name.c_str()] = std::chrono::duration<double>(*status.times[i] - *queued).count();
  }
  dict["stage_seconds"] = times;
  dict["error"] = OrNone(status.error);
  return dict;
}

bool PyTicket::WaitFor(std::optional<double> timeout) const {
  const GilReleased release;
  const bool ended = WaitUntil(timeout, [&](nanoseconds slice) { return wait_(slice).IsFinal(); });
  const TicketStatus status = wait_(nanoseconds(0));
  if (status.stage == TicketStage::kFailed && status.error.has_value()) Raise(*status.error);
  return ended;
}

void BindTicket(nb::module_& module) {
  nb::class_<PyTicket>(module, "Ticket")
      .def("look", &PyTicket::Look)
      .def("wait", &PyTicket::WaitFor, nb::arg("timeout").none());
}

}  // namespace weightwire::python
