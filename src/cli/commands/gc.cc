// weightwire gc RUN: removes what the policy does not keep and no lease needs.
#include "log/gc.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "base/quantities.h"
#include "base/result.h"
#include "cli/command_tools.h"
#include "cli/commands/commands.h"
#include "cli/global_options.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/policy.h"
#include "cli/retry.h"
#include "cli/run_access.h"
#include "cli/terminal.h"
#include "cli/text.h"

namespace weightwire {
namespace {

struct GcCommandOptions {
  std::string run;
  GcOptions gc;
  const GlobalOptions* global = nullptr;
};

JsonOutput ToJsonOutput(const GcAmount& amount) { return {{"objects", amount.objects}, {"bytes", amount.bytes}}; }

void ReportJson(const GcCommandOptions& options, const Collector& collector) {
  const GcProgress& progress = collector.progress();
  JsonOutput json;
  json["location"] = options.run;
  json["dry_run"] = options.gc.dry_run;
  json["seen"] = ToJsonOutput(progress.seen);
  json["deletable"] = ToJsonOutput(progress.deletable);
  json["kept_by_leases"] = ToJsonOutput(progress.kept_by_leases);
  json["removed"] = ToJsonOutput(progress.removed);
  json["living_leases"] = progress.active_leases;
  json["damaged_leases"] = progress.damaged_leases;
  json["tidied"] = ToJsonOutput(progress.expired);
  json["more"] = progress.more;
  json["held_back"] = progress.blocked;
  json["keys"] = JsonOutput::array();
  for (const Removal& removal : collector.deletable()) json["keys"].push_back(removal.key);
  PrintJson(json);
}

std::string Amount(const GcAmount& amount) {
  return fmt::format("{} {}, {}", WithCommas(amount.objects), amount.objects == 1 ? "object" : "objects",
                     HumanBytes(amount.bytes));
}

void ReportText(const GcCommandOptions& options, const Collector& collector) {
  const GcProgress& progress = collector.progress();
  fmt::print("{}: deltas and anchors have {}\n", options.run, Amount(progress.seen));
  if (options.gc.dry_run) {
    TextTable table("lrr");
    for (const Removal& removal : collector.deletable()) {
      table.AddRow({removal.key, WithCommas(removal.objects), HumanBytes(removal.bytes)});
    }
    fmt::print("may go           {}\n{}", Amount(progress.deletable), table.Render());
  } else {
    fmt::print("removed          {}\n", Amount(progress.removed));
  }
  if (progress.kept_by_leases.objects > 0) {
    fmt::print("kept by leases   {} ({} {} alive)\n", Amount(progress.kept_by_leases), progress.active_leases,
               progress.active_leases == 1 ? "follower" : "followers");
  }
  if (progress.expired.objects > 0) fmt::print("tidied up        {}\n", Amount(progress.expired));
  if (!progress.blocked.empty()) fmt::print("{}\n", progress.blocked);
  if (progress.more) fmt::print("There is more than one pass removes: run it again.\n");
}

Status RunGc(const GcCommandOptions& options, const CommandTools& tools) {
  WW_RETURN_IF_ERROR(CheckPolicy(options.gc.policy));
  WW_TRY(const OpenedRun opened, OpenRun(options.run, tools));
  if (!options.gc.dry_run) WW_RETURN_IF_ERROR(opened.run.CheckMayWrite());
  SystemRandom random;
  GcOptions gc = options.gc;
  gc.remove_threads = kGcRemoveThreads;
  Collector collector(opened.run, gc, random);
  const InterruptGuard interrupt;
  Status done;
  {
    LiveLine line;
    done = RetryTransient(interrupt, options.global->RetryFor(), [&]() -> Result<bool> {
      WW_TRY(const GcStep step, collector.Step());
      line.Show(step.text);
      if (step.what == GcStep::What::kWaits) {
        const auto seconds = std::chrono::ceil<std::chrono::seconds>(step.wait);
        line.Show(fmt::format("what goes is marked; removing it in {}", HumanDuration(seconds)));
        static_cast<void>(InterruptGuard::WaitFor(std::min<std::chrono::milliseconds>(step.wait, kGcWaitStep)));
      }
      return step.what == GcStep::What::kDone;
    });
  }
  if (!done.ok() && InterruptGuard::interrupted()) {
    const auto withdrawn = collector.Withdraw();
    return Error(done.error().code(), withdrawn.ok() && withdrawn.value()
                                          ? "interrupted; nothing was removed"
                                          : "interrupted; what was marked goes with the next gc");
  }
  if (!done.ok()) return done.error();
  if (options.global->json) {
    ReportJson(options, collector);
  } else {
    ReportText(options, collector);
  }
  return Ok();
}

}  // namespace

Command AddGc(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<GcCommandOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("gc", "remove old deltas and anchors that nobody needs");
  AddRun(sub, options->run, "the run");
  AddNumber(sub, "--keep-anchors", options->gc.policy.anchors,
            "keep the newest so many anchors, and what leads from the oldest of them to the newest version (3 "
            "unless given, at least 2)");
  AddNumber(sub, "--keep-versions", options->gc.policy.versions, "keep so many of the newest versions reachable");
  AddDuration(sub, "--min-age", options->gc.policy.minimum_age, "keep what is younger (24h unless given)");
  AddDuration(sub, "--grace", options->gc.grace,
              "wait so long between marking what goes and removing it (15m unless given)");
  sub.add_flag("--dry-run", options->gc.dry_run, "only show what would go");
  AddStoreOptions(sub, *tools.options);
  sub.footer(
      "What an active lease needs stays. Records are never removed. A gc that is cut off is taken up by the next one.\n"
      "Times like 30s, 15m, 24h or 7d; all are compared by the store's own clock.\n"
      "\n"
      "Examples:\n"
      "  weightwire gc /shared/runs/grpo-7b --dry-run\n"
      "  weightwire gc /shared/runs/grpo-7b --keep-anchors 2 --min-age 6h");
  return {&sub, [options, &tools] { return RunGc(*options, tools); }};
}

}  // namespace weightwire
