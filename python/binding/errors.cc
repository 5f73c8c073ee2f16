#include "errors.h"

#include <string>

#include "gil.h"
#include "runner/error_kinds.h"

namespace nb = nanobind;

namespace weightwire::python {
void Raise(const Error& error) {
  const GilAcquired gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  const nb::object type =
      nb::module_::import_("weightwire.errors").attr(std::string(KindOf(error.code()).exception).c_str());
  PyErr_SetString(type.ptr(), error.message().c_str());
  throw nb::python_error();
}

nb::object OrNone(const std::optional<Error>& error) {
  return error.has_value() ? nb::object(nb::str(error->message().c_str())) : nb::none();
}

void CheckSignals() {
  const GilAcquired gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace weightwire::python
