// weightwire checkout RUN[@VERSION] DIR: a version as a plain directory that any tool can load.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "cli/checkpoints.h"
#include "cli/command_tools.h"
#include "cli/commands/commands.h"
#include "cli/fetch_version.h"
#include "cli/global_options.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/run_access.h"
#include "cli/text.h"

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
  WW_TRY(const KnownRecord version, ReadVersion(opened.run, address.version));
  {
    const InterruptGuard interrupt;
    WW_RETURN_IF_ERROR(
        FetchVersion(opened.run, version, options.directory, options.include_code, compute, interrupt, tools));
  }
  const Record& record = version.record;
  if (options.global->json) {
    JsonOutput json;
    json["directory"] = options.directory.string();
    json["version"] = record.version;
    json["step"] = record.step;
    json["state"] = ToHex(record.state);
    PrintJson(json);
    return Ok();
  }
  fmt::print("{}: version {}, step {}\nstate  {}\n", options.directory.string(), record.version, record.step,
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
      "Takes the cheapest way by bytes, checks everything, and shows nothing before it is complete. The directory is\n"
      "like any other: configuration and tokenizer are in it, and nothing of weightwire. To keep one up to date, use\n"
      "'follow'.\n"
      "\n"
      "Examples:\n"
      "  weightwire checkout /shared/runs/grpo-7b newest\n"
      "  weightwire checkout s3://bucket/runs/grpo-7b@120 version-120");
  return {&sub, [options, &tools] { return RunCheckout(*options, tools); }};
}

}  // namespace weightwire
