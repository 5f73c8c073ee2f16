#include "cli/leases.h"

#include <fmt/format.h>

#include "cli/followers.h"
#include "cli/run_access.h"

namespace weightwire {

Status RunLeases(const LeasesOptions& options, const World& world) {
  WW_TRY(const OpenedRun opened, OpenRun(options.run, world));
  WW_TRY(const auto newest, opened.run.FindNewest(std::nullopt));
  const std::optional<Version> newest_version =
      newest.has_value() ? std::optional(newest->record.version) : std::nullopt;
  WW_TRY(const Followers followers, ReadFollowers(opened.run, newest_version));
  if (options.json) {
    JsonOutput json;
    json["run"] = ToHex(opened.run.id());
    json["newest"] = newest_version.has_value() ? JsonOutput(*newest_version) : JsonOutput(nullptr);
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

}  // namespace weightwire
