// Errors of the core as Python exceptions: the only place where there are exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <utility>

#include "base/result.h"

namespace weightwire::python {

// Throws the exception of weightwire.errors that belongs to the code; or KeyboardInterrupt, if Ctrl-C was what made the
// work fail. The GIL may be held or not.
[[noreturn]] void Raise(const Error& error);

template <typename T>
T ValueOrRaise(Result<T> result) {
  if (!result.ok()) Raise(result.error());
  return std::move(result).value();
}

inline void OkOrRaise(const Status& status) {
  if (!status.ok()) Raise(status.error());
}

// For what Python sees of the core's state.
template <typename Number>
nanobind::object OrNone(const std::optional<Number>& number) {
  return number.has_value() ? nanobind::object(nanobind::int_(*number)) : nanobind::none();
}
nanobind::object OrNone(const std::optional<Error>& error);

// Whether the interpreter has a signal to deal with; throws what its handler raised (KeyboardInterrupt). Takes the GIL.
void CheckSignals();

}  // namespace weightwire::python
