// weightwire gc RUN: removes what the policy does not keep and no lease needs.
#include "log/gc.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/quantities.h"
#include "base/result.h"
#include "cli/command_tools.h"
#include "cli/commands/commands.h"
#include "cli/global_options.h"
#include "cli/interrupt.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/policy.h"
#include "cli/report_json.h"
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

void ReportJson(const GcCommandOptions& options, const Run& run, const Collector& collector) {
  const GcProgress& progress = collector.progress();
  const GcKept& kept = progress.kept;
  JsonOutput json = JsonOf(run);
  json["dry_run"] = options.gc.dry_run;
  json["seen"] = ToJsonOutput(progress.seen);
  json["kept_by_anchors"] = ToJsonOutput(kept.by_anchors);
  json["kept_by_versions"] = ToJsonOutput(kept.by_versions);
  json["kept_by_min_age"] = ToJsonOutput(kept.by_minimum_age);
  json["kept_by_leases"] = ToJsonOutput(kept.by_leases);
  json["uncommitted"] = ToJsonOutput(kept.uncommitted);
  json["deletable"] = ToJsonOutput(progress.deletable);
  json["removed"] = ToJsonOutput(progress.removed);
  json["stale_removed"] = ToJsonOutput(progress.expired);
  json["active_leases"] = progress.active_leases;
  json["unreadable_leases"] = progress.unreadable_leases;
  json["blocked_because"] = progress.blocked.empty() ? JsonOutput(nullptr) : JsonOutput(progress.blocked);
  json["has_more"] = progress.more;
  json["deletable_keys"] = JsonOutput::array();
  for (const Removal& removal : collector.deletable()) json["deletable_keys"].push_back(removal.key);
  PrintJson(json);
}

std::string Amount(const GcAmount& amount) {
  return fmt::format("{} {}, {}", WithCommas(amount.objects), amount.objects == 1 ? "object" : "objects",
                     HumanBytes(amount.bytes));
}

// What each rule keeps, as the options that set it say.
std::string KeptTable(const GcCommandOptions& options, const GcProgress& progress) {
  const RetentionPolicy& policy = options.gc.policy;
  const GcKept& kept = progress.kept;
  TextTable table("lrrl");
  const auto add = [&table](const std::string& what, const GcAmount& amount, const std::string& remark = "") {
    if (amount.objects == 0) return;
    table.AddRow({what, WithCommas(amount.objects), HumanBytes(amount.bytes), remark});
  };
  add(fmt::format("kept by --keep-anchors {}", policy.anchors), kept.by_anchors);
  add(fmt::format("kept by --keep-versions {}", policy.versions), kept.by_versions);
  add(fmt::format("kept by --min-age {}", HumanDuration(policy.minimum_age)), kept.by_minimum_age);
  add("kept by leases", kept.by_leases, fmt::format("{} active", progress.active_leases));
  add("kept for versions not committed yet", kept.uncommitted);
  return table.Render();
}

void ReportText(const GcCommandOptions& options, const Collector& collector) {
  const GcProgress& progress = collector.progress();
  fmt::print("{}: deltas and anchors have {}\n{}", options.run, Amount(progress.seen), KeptTable(options, progress));
  if (options.gc.dry_run) {
    TextTable table("lrr");
    for (const Removal& removal : collector.deletable()) {
      table.AddRow({"  " + removal.key, WithCommas(removal.objects), HumanBytes(removal.bytes)});
    }
    fmt::print("deletable: {}\n{}", Amount(progress.deletable), table.Render());
  } else {
    fmt::print("deleted: {}\n", Amount(progress.removed));
  }
  if (progress.expired.objects > 0) {
    fmt::print("deleted expired leases and probes: {}\n", Amount(progress.expired));
  }
  if (!progress.blocked.empty()) fmt::print("{}\n", progress.blocked);
  if (progress.more) fmt::print("One pass deletes no more than this: run gc again for the rest.\n");
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
  bool is_announced = false;
  {
    LiveLine line;
    done = RetryTransient(interrupt, options.global->RetryFor(), [&]() -> Result<bool> {
      WW_TRY(const GcStep step, collector.Step());
      line.Show(step.text);
      if (step.what == GcStep::What::kWaits) {
        const auto seconds = std::chrono::ceil<std::chrono::seconds>(step.wait);
        if (options.gc.grace.count() > 0 && !std::exchange(is_announced, true)) {
          line.Erase();
          messages::Info(
              fmt::format("{} can be deleted; gc deletes them in {} (--grace), unless it is interrupted before",
                          Amount(collector.progress().deletable), HumanDuration(seconds)));
        }
        line.Show(fmt::format("deleting in {}", HumanDuration(seconds)));
        static_cast<void>(InterruptGuard::WaitFor(std::min<std::chrono::milliseconds>(step.wait, kGcWaitStep)));
      }
      return step.what == GcStep::What::kDone;
    });
  }
  if (!done.ok() && InterruptGuard::interrupted()) {
    const auto withdrawn = collector.Withdraw();
    return Error(done.error().code(), withdrawn.ok() && withdrawn.value()
                                          ? "interrupted; nothing was deleted"
                                          : "interrupted; the next gc deletes what is left of it");
  }
  if (!done.ok()) return done.error();
  if (options.global->json) {
    ReportJson(options, opened.run, collector);
  } else {
    ReportText(options, collector);
  }
  return Ok();
}

}  // namespace

Command AddGc(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<GcCommandOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("gc", "delete old deltas and anchors that nobody needs");
  AddRun(sub, options->run, "the run");
  AddNumber(sub, "--keep-anchors", options->gc.policy.anchors,
            "keep the newest N anchors and all deltas after the oldest of them (default: 3, minimum: 2)");
  AddNumber(sub, "--keep-versions", options->gc.policy.versions,
            "keep what leads to the newest N versions (default: what --keep-anchors keeps)");
  AddDuration(sub, "--min-age", options->gc.policy.minimum_age, "keep what is younger than TIME (default: 24h)");
  AddDuration(sub, "--grace", options->gc.grace,
              "wait TIME before deleting, for readers that keep no lease (default: 15m)");
  sub.add_flag("--dry-run", options->gc.dry_run, "show what would be deleted, and delete nothing");
  AddStoreOptions(sub, *tools.options);
  sub.footer(
      "Keeps what an active lease needs, and all records. Shows how much each rule keeps.\n"
      "If there is something to delete, gc first marks it in the bucket and waits for --grace. Interrupted before the\n"
      "end of that time, it deletes nothing; later, the next gc continues. Times are compared by the store's clock.\n"
      "\n"
      "Examples:\n"
      "  weightwire gc /shared/runs/grpo-7b --dry-run\n"
      "  weightwire gc /shared/runs/grpo-7b --keep-anchors 2 --min-age 6h");
  return {&sub, [options, &tools] { return RunGc(*options, tools); }};
}

}  // namespace weightwire
