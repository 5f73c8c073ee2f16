// weightwire log RUN: the versions of a run, and what each cost to send.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/failure_policy.h"
#include "base/result.h"
#include "cli/command_tools.h"
#include "cli/commands/commands.h"
#include "cli/global_options.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/policy.h"
#include "cli/report_json.h"
#include "cli/run_access.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "runner/policy.h"
#include "runner/run_report.h"

namespace weightwire {
namespace {

struct LogOptions {
  std::string run;
  std::uint64_t last = 100;
  bool watch = false;  // go on with what comes
  const GlobalOptions* global = nullptr;
};

// Fixed widths, so that lines that come later stand below the others.
constexpr const char* kColumns = "{:>8}  {:>10}  {:<20}  {:>9}  {:>10}  {:>9}  {:>10}{}\n";

constexpr std::size_t kTimeWithoutFraction = std::string_view("0000-00-00T00:00:00").size();

void PrintHead() { fmt::print(kColumns, "version", "step", "published", "changed", "delta", "of model", "anchor", ""); }

// Remarks on a version, shown after its numbers.
std::string Remarks(const VersionInfo& info) {
  std::string remarks;
  const auto add = [&](std::string_view remark) {
    remarks += fmt::format("{}{}", remarks.empty() ? "  " : ", ", remark);
  };
  if (!info.delta_bytes.has_value() && info.version > 0) add("rebase");
  if (info.layout_changed) add("new layout");
  if (!info.can_check_out) add("removed");
  return remarks;
}

void PrintText(const VersionInfo& info) {
  const std::string none = "–";
  // To the second: the column has no room for the fraction.
  const std::string published = info.time.substr(0, kTimeWithoutFraction) + "Z";
  fmt::print(kColumns, info.version, info.step, published,
             info.changed_elements.has_value() ? Percent(*info.changed_elements, info.elements) : none,
             info.delta_bytes.has_value() ? HumanBytes(*info.delta_bytes) : none,
             info.delta_bytes.has_value() ? Percent(*info.delta_bytes, info.model_bytes) : none,
             info.anchor_bytes.has_value() ? HumanBytes(*info.anchor_bytes) : none, Remarks(info));
}

void PrintEvent(const VersionInfo& info) {
  JsonOutput json = {{"event", "version"}};
  AddFields(json, info);
  PrintJsonLine(json);
}

// Shows new versions until a signal comes.
Status Watch(VersionReader& reader, bool json) {
  const InterruptGuard interrupt(InterruptGuard::AtEnd::kForget);
  for (;;) {
    std::fflush(stdout);
    for (;;) {
      const auto info = reader.ReadNext();
      if (!info.ok() && IsTransient(info.error())) break;
      if (!info.ok()) return info.error();
      if (!info.value().has_value()) break;
      if (json) {
        PrintEvent(*info.value());
      } else {
        PrintText(*info.value());
      }
    }
    std::fflush(stdout);
    if (!interrupt.WaitFor(kWatchInterval)) return Ok();
  }
}

void PrintObject(const Run& run, std::optional<Version> newest, const std::vector<VersionInfo>& versions) {
  JsonOutput json = JsonOf(run);
  json["newest_version"] = OrNull(newest);
  json["single_writer"] = run.manifest().single_writer;
  json["versions"] = JsonOutput::array();
  for (const VersionInfo& info : versions) json["versions"].push_back(ToJsonOutput(info));
  PrintJson(json);
}

void PrintTable(const LogOptions& options, const Run& run, const std::vector<VersionInfo>& versions) {
  fmt::print("run {} at {}\n", ToHex(run.id()), options.run);
  if (versions.empty()) {
    fmt::print("no version yet\n");
    if (options.watch) PrintHead();
    return;
  }
  const VersionInfo& newest = versions.back();
  fmt::print("{} {} of a model of {} elements, {}\n\n", WithCommas(newest.version + 1),
             newest.version == 0 ? "version" : "versions", WithCommas(newest.elements), HumanBytes(newest.model_bytes));
  PrintHead();
  for (const VersionInfo& info : versions) PrintText(info);
}

Status RunLog(const LogOptions& options, const CommandTools& tools) {
  if (options.last == 0) {
    return Error(ErrorCode::kInvalidArgument, "log cannot show the newest 0 versions; give --last a number above 0");
  }
  WW_TRY(const OpenedRun opened, OpenRun(options.run, tools));
  const Run& run = opened.run;
  WW_TRY(const auto newest, run.FindNewest(std::nullopt));
  const std::uint64_t count = newest.has_value() ? newest->record.version + 1 : 0;
  VersionReader reader(run, kRecordThreads);
  std::vector<VersionInfo> versions;
  if (count > 0) {
    const Version first = count - std::min(count, options.last);
    Progress progress("reading records", count - first);
    WW_TRY(versions, reader.Read(first, count - 1, [&progress] { progress.Add(1); }));
  }
  if (!options.global->json) {
    PrintTable(options, run, versions);
  } else if (options.watch) {
    for (const VersionInfo& info : versions) PrintEvent(info);
  } else {
    PrintObject(run, count > 0 ? std::optional(count - 1) : std::nullopt, versions);
  }
  return options.watch ? Watch(reader, options.global->json) : Ok();
}

}  // namespace

Command AddLog(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<LogOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("log", "show the versions of a run, and what each cost to send");
  AddRun(sub, options->run, "the run");
  AddNumber(sub, "-n,--last", options->last, "show the newest N versions (default: 100)");
  sub.add_flag("--watch", options->watch, "then show each new version as it comes, until interrupted");
  AddStoreOptions(sub, *tools.options);
  sub.footer(
      "'delta' is what the version took as a change of the version before. The first version, and a 'rebase', have no\n"
      "delta. 'anchor' is the size of the complete checkpoint of that version that the bucket holds. 'new layout' "
      "says\n"
      "that names, types or shapes of tensors changed. 'removed' says that gc deleted what led to the version, so "
      "that\n"
      "it cannot be checked out any more.\n"
      "With --json: an object with 'versions', oldest first. With --watch and --json: a line for each version.\n"
      "'weightwire followers' shows who follows.\n"
      "\n"
      "Examples:\n"
      "  weightwire log /shared/runs/grpo-7b -n 20\n"
      "  weightwire log /shared/runs/grpo-7b --watch");
  return {&sub, [options, &tools] { return RunLog(*options, tools); }};
}

}  // namespace weightwire
