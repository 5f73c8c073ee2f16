// weightwire followers RUN: who follows the run, how far behind they are, and what gc keeps for them.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/quantities.h"
#include "base/result.h"
#include "cli/command_tools.h"
#include "cli/commands/commands.h"
#include "cli/global_options.h"
#include "cli/options.h"
#include "cli/report_json.h"
#include "cli/run_access.h"
#include "cli/text.h"
#include "runner/run_report.h"

namespace weightwire {
namespace {

struct FollowersOptions {
  std::string run;
  const GlobalOptions* global = nullptr;
};

std::string Table(const std::vector<FollowerInfo>& followers) {
  const auto number = [](const std::optional<std::uint64_t>& value) {
    return value.has_value() ? WithCommas(*value) : std::string("–");
  };
  TextTable table("lrrlll");
  table.AddRow({"follower", "version", "lag", "renewed", "lease", "id"});
  for (const FollowerInfo& follower : followers) {
    table.AddRow({follower.name.value_or("–"), number(follower.version), number(follower.lag_versions),
                  HumanDuration(follower.renewed_ago) + " ago", follower.is_active ? "active" : "expired",
                  follower.follower_id});
  }
  return table.Render();
}

Status RunFollowers(const FollowersOptions& options, const CommandTools& tools) {
  WW_TRY(const OpenedRun opened, OpenRun(options.run, tools));
  WW_TRY(const auto newest, opened.run.FindNewest(std::nullopt));
  const std::optional<Version> newest_version =
      newest.has_value() ? std::optional(newest->record.version) : std::nullopt;
  WW_TRY(const Followers followers, ReadFollowers(opened.run, newest_version));
  if (options.global->json) {
    JsonOutput json = JsonOf(opened.run);
    json["newest_version"] = OrNull(newest_version);
    json["unreadable_leases"] = followers.unreadable_leases;
    json["followers"] = JsonOutput::array();
    for (const FollowerInfo& follower : followers.all) json["followers"].push_back(ToJsonOutput(follower));
    PrintJson(json);
    return Ok();
  }
  if (followers.all.empty()) {
    fmt::print("{}: no follower keeps a lease\n", options.run);
  } else {
    fmt::print("{}", Table(followers.all));
  }
  if (followers.unreadable_leases > 0) {
    fmt::print("{} more cannot be read; gc deletes nothing while one of them may be active\n",
               followers.unreadable_leases);
  }
  return Ok();
}

}  // namespace

Command AddFollowers(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<FollowersOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("followers", "show who follows a run, and how far behind they are");
  AddRun(sub, options->run, "the run");
  AddStoreOptions(sub, *tools.options);
  sub.footer(
      "A follower keeps a lease in the bucket, so that gc keeps what it needs. It renews the lease every five "
      "minutes,\n"
      "and soon after each new version. A lease that is not renewed expires. Followers that may only read keep none,\n"
      "and are not shown.\n"
      "\n"
      "Example:\n"
      "  weightwire followers /shared/runs/grpo-7b");
  return {&sub, [options, &tools] { return RunFollowers(*options, tools); }};
}

}  // namespace weightwire
