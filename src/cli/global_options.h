// The options that every command has, and those of every command that uses a store. Each is declared once and stored in
// one struct, which all commands read.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "runner/policy.h"

namespace weightwire {

struct GlobalOptions {
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  std::string log_format = "text";  // or "json"
  std::size_t threads = 0;          // 0: one for each core

  // Of commands that use a store:
  std::optional<std::chrono::milliseconds> retry_for;  // nothing unless the user gave it
  std::uint64_t max_bytes_per_second = 0;              // 0: no limit

  // How long the command retries while the store cannot be reached. One meaning for all commands: it ends when the
  // store has answered nothing for this long.
  [[nodiscard]] std::chrono::milliseconds RetryFor() const { return retry_for.value_or(kRetryFor); }
};

// --json, --quiet, --verbose, --log-format, --threads: of the program. They work before and after the command's name.
// `options` must outlive the parsing.
void AddGlobalOptions(CLI::App& program, GlobalOptions& options);

// --retry-for and --max-bytes-per-second: of a command that uses a store.
void AddStoreOptions(CLI::App& command, GlobalOptions& options);

}  // namespace weightwire
