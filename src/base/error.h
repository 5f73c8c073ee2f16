// Errors are values. Every function of the core that can fail returns a Result<T> (result.h) holding
// either the value or one Error: a code, for programs, and one sentence, for people.
//
// A code exists only where a caller of the core would react differently. Users see fewer kinds of errors, and
// runner/error_kinds.h says which: the names, exit statuses and Python exceptions. A broken invariant of our own is not
// an Error: it aborts (WW_CHECK in check.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace weightwire {

enum class ErrorCode : std::uint8_t {
  kInvalidArgument = 1,  // the request itself is wrong; repeating it will not help
  kNotFound,             // a file, tensor or object is not there
  kIo,                   // the operating system refused (disk full, permission, …)
  kCorrupt,              // bytes are damaged or break their format's rules; fetch them again
  kMismatch,             // bytes are well-formed but belong to another base, layout or state
  kUnsupported,          // valid, but needs a newer weightwire or a feature this build lacks
  kLimit,                // exceeds a named limit (limits.h)
  kConflict,             // another publisher has committed the version; restarting does not help
  kRefused,              // the store does not accept the credentials, or does not allow this to them; a person must act
  kUnavailable,          // not now (network, overload, time-out), and nothing was changed; trying again may help
  kUnknownOutcome,       // a write was sent and its answer was lost: it may have happened, or still happen; read back
  kTimeout,              // what the caller waited for did not happen in the time it allowed
};

class Error {
 public:
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] ErrorCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

  // Puts "doing what: " in front, so that the outermost caller names the user's own file or tensor.
  [[nodiscard]] Error In(const std::string& context) const { return {code_, context + ": " + message_}; }

 private:
  ErrorCode code_;
  std::string message_;
};

// The most common of them, where formats are read.
[[nodiscard]] inline Error Corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }

}  // namespace weightwire
