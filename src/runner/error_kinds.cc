#include "runner/error_kinds.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace weightwire {
namespace {

constexpr std::array kKinds = {
    ErrorKind{"invalid_argument", 2, "InvalidArgumentError", false, "wrong arguments"},
    ErrorKind{"not_found", 3, "NotFoundError", false, "a run, version, file or object does not exist"},
    ErrorKind{"local_io", 4, "LocalIOError", false, "the operating system refused: disk full, permission"},
    ErrorKind{"corrupt", 5, "CorruptError", false, "damaged bytes"},
    ErrorKind{"mismatch", 6, "MismatchError", false, "another base, layout, state or run"},
    ErrorKind{"unsupported", 7, "UnsupportedError", false,
              "needs a newer weightwire or another store, or is too large"},
    ErrorKind{"conflict", 9, "ConflictError", false, "another publisher committed the version; do not restart"},
    ErrorKind{"permission_denied", 10, "PermissionDeniedError", false, "the store refused the credentials"},
    ErrorKind{"unavailable", 11, "UnavailableError", true, "network or service failure; try again"},
    ErrorKind{"wait_timeout", 12, "WaitTimeoutError", true, "it did not happen in time; try again"},
};

constexpr std::string_view NameOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kIo:
      return "local_io";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kMismatch:
      return "mismatch";
    case ErrorCode::kUnsupported:
    case ErrorCode::kLimit:
      return "unsupported";
    case ErrorCode::kConflict:
      return "conflict";
    case ErrorCode::kRefused:
      return "permission_denied";
    case ErrorCode::kUnavailable:
    case ErrorCode::kUnknownOutcome:
      return "unavailable";
    case ErrorCode::kTimeout:
      return "wait_timeout";
  }
  return "invalid_argument";
}

}  // namespace

const ErrorKind& KindOf(ErrorCode code) {
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(),
                                 [name = NameOf(code)](const ErrorKind& candidate) { return candidate.name == name; });
  WW_CHECK(kind != kKinds.end());
  return *kind;
}

std::span<const ErrorKind> AllErrorKinds() { return kKinds; }

}  // namespace weightwire
