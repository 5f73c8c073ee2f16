// The kinds of errors that users see: in exit statuses, in JSON, and as exceptions in Python.
//
// The core distinguishes more codes (base/error.h) than users need. This table joins codes to which users react alike:
// "above a limit" is "unsupported", and "the answer was lost" is "unavailable". The command, the binding and the
// documentation read it, so a kind has the same name and meaning everywhere.
#pragma once

#include <span>
#include <string_view>

#include "base/error.h"

namespace weightwire {

struct ErrorKind {
  std::string_view name;       // "not_found": "code" in JSON, and `.code` of an exception
  int exit_status;             // of a command
  std::string_view exception;  // the class in Python
  bool retryable;              // true if the same call may succeed later, without anyone acting
  std::string_view meaning;    // for help and documentation, without a full stop
};

[[nodiscard]] const ErrorKind& KindOf(ErrorCode code);

// All kinds, by exit status. Exit status 1 is a broken invariant, and 13 is reserved for signatures.
[[nodiscard]] std::span<const ErrorKind> AllErrorKinds();

}  // namespace weightwire
