// weightwire verify RUN: reads a whole run and recomputes everything it promises.
#include "follow/verify.h"

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "cli/checkpoints.h"
#include "cli/command_tools.h"
#include "cli/commands/commands.h"
#include "cli/global_options.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/report_json.h"
#include "cli/retry.h"
#include "cli/run_access.h"
#include "cli/terminal.h"
#include "cli/text.h"

namespace weightwire {
namespace {

struct VerifyOptions {
  std::string run;
  Version since = 0;
  const GlobalOptions* global = nullptr;
};

void ReportJson(const VerifyOptions& options, const Run& run, const VerifyReport& report) {
  JsonOutput json = JsonOf(run);
  json["since_version"] = options.since;
  json["newest_version"] = *report.newest;
  json["records"] = report.records;
  json["parts"] = report.parts;
  json["anchors"] = report.anchors;
  json["read_bytes"] = report.bytes;
  json["verified_versions"] = report.states;
  json["removed_versions"] = report.pruned;
  json["damage"] = report.damage;
  PrintJson(json);
}

void ReportText(const VerifyOptions& options, const VerifyReport& report) {
  fmt::print("{}: versions {} to {}\n", options.run, options.since, *report.newest);
  fmt::print("read      records {}, parts of deltas {}, anchors {}: {}\n", WithCommas(report.records),
             WithCommas(report.parts), WithCommas(report.anchors), HumanBytes(report.bytes));
  fmt::print("verified  {} versions, each against the digest in its record\n", WithCommas(report.states));
  if (report.pruned > 0) {
    fmt::print("removed   {} whose deltas gc has deleted\n",
               report.pruned == 1 ? "1 version" : WithCommas(report.pruned) + " versions");
  }
  for (const std::string& sentence : report.damage) fmt::print("damage    {}\n", sentence);
  if (report.damage.empty()) fmt::print("No damage found.\n");
}

Status RunVerify(const VerifyOptions& options, const CommandTools& tools) {
  WW_TRY(const Compute compute, Compute::Make(options.global->threads));
  WW_TRY(const OpenedRun opened, OpenRun(options.run, tools));
  Verifier verifier(opened.run, options.since, *compute.kernels, *compute.pool);
  const InterruptGuard interrupt;
  // It finds the newest version by itself, even if some records are damaged.
  WW_RETURN_IF_ERROR(RetryTransient(interrupt, options.global->RetryFor(), [&]() -> Result<bool> {
    WW_RETURN_IF_ERROR(verifier.Step());
    return verifier.report().newest.has_value();
  }));
  {
    Progress progress("verifying " + options.run, *verifier.report().newest + 1 - options.since);
    Version at = options.since;
    WW_RETURN_IF_ERROR(RetryTransient(interrupt, options.global->RetryFor(), [&]() -> Result<bool> {
      WW_TRY(const bool done, verifier.Step());
      progress.Add(verifier.at() - std::min(at, verifier.at()));
      at = verifier.at();
      return done;
    }));
  }
  const VerifyReport& report = verifier.report();
  if (options.global->json) {
    ReportJson(options, opened.run, report);
  } else {
    ReportText(options, report);
  }
  if (report.damage.empty()) return Ok();
  return Error(ErrorCode::kCorrupt, fmt::format("the run at {} is damaged: {} {}", options.run, report.damage.size(),
                                                report.damage.size() == 1 ? "thing is wrong" : "things are wrong"));
}

}  // namespace

Command AddVerify(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<VerifyOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("verify", "read a whole run and recompute everything it promises");
  AddRun(sub, options->run, "the run");
  AddNumber(sub, "--since", options->since, "verify from VERSION on (default: 0)")->type_name("VERSION");
  AddStoreOptions(sub, *tools.options);
  sub.footer(
      "Every record is compared with the one before, every object is hashed, every delta is replayed; at each anchor\n"
      "and at the newest version the digest is computed in full. Deltas that gc has removed are no damage as long as\n"
      "an anchor leads to the newest version. The model is held in memory, twice at an anchor.\n"
      "Exit status: 0, or 5 if anything is damaged.\n"
      "\n"
      "Example:\n"
      "  weightwire verify /shared/runs/grpo-7b");
  return {&sub, [options, &tools] { return RunVerify(*options, tools); }};
}

}  // namespace weightwire
