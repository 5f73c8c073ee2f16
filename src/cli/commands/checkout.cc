// weightwire checkout RUN[@VERSION] DIR: a version as a plain directory that any tool can load.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "cli/checkout_with_retries.h"
#include "cli/checkpoints.h"
#include "cli/command_tools.h"
#include "cli/commands/commands.h"
#include "cli/global_options.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/report_json.h"
#include "cli/run_access.h"
#include "cli/text.h"
#include "runner/run_report.h"

namespace weightwire {
namespace {

struct CheckoutOptions {
  std::string run;
  std::filesystem::path directory;
  bool include_code = false;
  const GlobalOptions* global = nullptr;
};

Status RunCheckout(const CheckoutOptions& options, const CommandTools& tools) {
  WW_TRY(const RunAddress address, ParseRunAddress(options.run));
  WW_RETURN_IF_ERROR(CheckNameIsFree(options.directory));
  WW_TRY(const Compute compute, Compute::Make(options.global->threads));
  WW_TRY(const OpenedRun opened, OpenRun(address.location, tools));
  WW_TRY(const KnownRecord version, FindVersion(opened.run, address.version));
  {
    const InterruptGuard interrupt;
    WW_RETURN_IF_ERROR(
        CheckOutWithRetries(opened.run, version, options.directory, options.include_code, compute, interrupt, tools));
  }
  const Record& record = version.record;
  if (options.global->json) {
    JsonOutput json = JsonOf(opened.run);
    json["version"] = record.version;
    json["step"] = record.step;
    json["digest"] = ToHex(record.state);
    json["directory"] = options.directory.string();
    PrintJson(json);
    return Ok();
  }
  fmt::print("{}: version {}, step {}\ndigest  {}\n", options.directory.string(), record.version, record.step,
             ToHex(record.state));
  return Ok();
}

}  // namespace

Command AddCheckout(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<CheckoutOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("checkout", "get a version as a plain Hugging Face directory");
  AddRunAtVersion(sub, options->run);
  AddPath(sub, "DIR", options->directory, "the directory to make; must not exist")->required();
  AddIncludeCodeInDirectory(sub, options->include_code);
  AddStoreOptions(sub, *tools.options);
  sub.footer(
      "Fetches the fewest bytes that lead to the version, verifies everything, and shows nothing before it is "
      "complete.\n"
      "The directory has configuration and tokenizer, and nothing of weightwire. 'follow' keeps a directory up to "
      "date.\n"
      "A checkout that fails removes what it fetched, or says what it keeps so that the next one continues from "
      "there.\n"
      "\n"
      "Examples:\n"
      "  weightwire checkout /shared/runs/grpo-7b newest\n"
      "  weightwire checkout s3://bucket/runs/grpo-7b@120 version-120");
  return {&sub, [options, &tools] { return RunCheckout(*options, tools); }};
}

}  // namespace weightwire
