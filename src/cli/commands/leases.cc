// weightwire leases RUN: who follows the run, what they hold, and what they keep from being removed.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/command_tools.h"
#include "cli/commands/commands.h"
#include "cli/followers.h"
#include "cli/global_options.h"
#include "cli/options.h"
#include "cli/run_access.h"

namespace weightwire {
namespace {

struct LeasesOptions {
  std::string run;
  const GlobalOptions* global = nullptr;
};

Status RunLeases(const LeasesOptions& options, const CommandTools& tools) {
  WW_TRY(const OpenedRun opened, OpenRun(options.run, tools));
  WW_TRY(const auto newest, opened.run.FindNewest(std::nullopt));
  const std::optional<Version> newest_version =
      newest.has_value() ? std::optional(newest->record.version) : std::nullopt;
  WW_TRY(const Followers followers, ReadFollowers(opened.run, newest_version));
  if (options.global->json) {
    JsonOutput json;
    json["run"] = ToHex(opened.run.id());
    json["newest"] = OrNull(newest_version);
    json["damaged"] = followers.damaged;
    json["leases"] = JsonOutput::array();
    for (const KnownFollower& follower : followers.all) json["leases"].push_back(ToJsonOutput(follower));
    PrintJson(json);
    return Ok();
  }
  if (followers.all.empty()) {
    fmt::print("{}: nobody keeps a lease\n", options.run);
  } else {
    fmt::print("{}", FollowerTable(followers.all));
  }
  if (followers.damaged > 0) {
    fmt::print("{} more cannot be read; gc removes nothing while one of them may be alive\n", followers.damaged);
  }
  return Ok();
}

}  // namespace

Command AddLeases(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<LeasesOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("leases", "show who follows a run, and what they still need");
  AddRun(sub, options->run, "the run");
  AddStoreOptions(sub, *tools.options);
  sub.footer(
      "A follower keeps a lease in the bucket so that gc leaves what it needs. One that is not renewed expires, and\n"
      "counts no more. Followers that may only read keep none, and are not shown.\n"
      "\n"
      "Example:\n"
      "  weightwire leases /shared/runs/grpo-7b");
  return {&sub, [options, &tools] { return RunLeases(*options, tools); }};
}

}  // namespace weightwire
