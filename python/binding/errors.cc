#include "errors.h"

#include <string>

namespace nb = nanobind;

namespace weightwire::python {
namespace {

const char* NameOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgumentError";
    case ErrorCode::kNotFound:
      return "NotFoundError";
    case ErrorCode::kIo:
      return "IoError";
    case ErrorCode::kCorrupt:
      return "CorruptError";
    case ErrorCode::kMismatch:
      return "MismatchError";
    case ErrorCode::kUnsupported:
      return "UnsupportedError";
    case ErrorCode::kLimit:
      return "LimitError";
    case ErrorCode::kUnknownOutcome:
    case ErrorCode::kUnavailable:
      return "UnavailableError";
    case ErrorCode::kRefused:
      return "RefusedError";
  }
  return "WeightwireError";
}

}  // namespace

void Raise(const Error& error) {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  const nb::object type = nb::module_::import_("weightwire.errors").attr(NameOf(error.code()));
  PyErr_SetString(type.ptr(), error.message().c_str());
  throw nb::python_error();
}

nb::object OrNone(const std::optional<Error>& error) {
  return error.has_value() ? nb::object(nb::str(error->message().c_str())) : nb::none();
}

void CheckSignals() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace weightwire::python
