// Another program, run to its end for what it prints.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/policy.h"
#include "base/result.h"

namespace weightwire {

struct ProcessOptions {
  std::string input;  // all of its standard input; at most kMaxProcessInput
  std::chrono::milliseconds deadline = kProcessTimeout;
  std::size_t max_output_bytes = std::size_t{64} << 10;
};
// As much as a pipe takes without anybody reading from it.
constexpr std::size_t kMaxProcessInput = std::size_t{32} << 10;

struct ProcessResult {
  std::string output;  // what it has printed on standard output; standard error is ours
  int status = 0;      // with which it ended; 128 and the signal's number, if a signal ended it
};

// Runs a program found by PATH. kIo when it cannot be started, kUnavailable when it is not done in time, kLimit when it
// prints too much; it has been killed then, and what it has started too. Messages name the program, not its arguments.
Result<ProcessResult> RunProcess(const std::vector<std::string>& arguments, const ProcessOptions& options);

}  // namespace weightwire
