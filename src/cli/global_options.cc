#include "cli/global_options.h"

#include "cli/options.h"

namespace weightwire {
namespace {

constexpr std::size_t kMaxThreads = 1024;

}  // namespace

void AddGlobalOptions(CLI::App& program, GlobalOptions& options) {
  program.add_flag("--json", options.json, "print the result as JSON, and errors too");
  CLI::Option* const quiet = program.add_flag(
      "-q,--quiet", options.quiet, "print no progress and no information, only the result, warnings and errors");
  program.add_flag("-v,--verbose", options.verbose, "print what is done: requests to the store, and retries")
      ->excludes(quiet);
  AddSetting(program, settings::kLogFormat, options.log_format);
  AddSetting(program, settings::kThreads, options.threads)
      ->check(CLI::Range(std::size_t{1}, kMaxThreads).description(""));
}

void AddStoreOptions(CLI::App& command, GlobalOptions& options) {
  AddSetting(command, settings::kRetryFor, options.retry_for);
  AddSetting(command, settings::kMaxBytesPerSecond, options.max_bytes_per_second);
}

}  // namespace weightwire
