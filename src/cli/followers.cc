#include "cli/followers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/quantities.h"
#include "cli/text.h"

namespace weightwire {

Result<Followers> ReadFollowers(const Run& run, std::optional<Version> newest) {
  Followers followers;
  WW_TRY(const std::vector<KnownLease> leases, run.ReadLeases(&followers.damaged));
  if (leases.empty()) return followers;
  WW_TRY(const WallTime now, run.store().Now());
  for (const KnownLease& known : leases) {
    KnownFollower follower{known.lease, std::chrono::floor<std::chrono::seconds>(now - known.last_modified),
                           IsActive(known.lease, known.last_modified, now), std::nullopt};
    if (newest.has_value() && known.lease.holds.has_value()) {
      follower.behind = *newest - std::min(*newest, *known.lease.holds);
    }
    followers.all.push_back(std::move(follower));
  }
  std::sort(followers.all.begin(), followers.all.end(), [](const KnownFollower& a, const KnownFollower& b) {
    return std::tie(a.lease.name, a.lease.follower) < std::tie(b.lease.name, b.lease.follower);
  });
  return followers;
}

JsonOutput ToJsonOutput(const KnownFollower& follower) {
  const Lease& lease = follower.lease;
  JsonOutput json;
  json["id"] = ToHex(lease.follower);
  json["name"] = lease.name;
  json["holds"] = OrNull(lease.holds);
  json["behind"] = OrNull(follower.behind);
  json["needs_from"] = OrNull(lease.needs_from);
  json["needs_anchor"] = lease.needs_anchor.has_value() ? JsonOutput(lease.needs_anchor->version) : JsonOutput(nullptr);
  json["renewed_seconds_ago"] = follower.renewed_ago.count();
  json["lease_seconds"] = lease.seconds;
  json["alive"] = follower.alive;
  return json;
}

std::string FollowerTable(const std::vector<KnownFollower>& followers) {
  if (followers.empty()) return "";
  TextTable table("lrrlll");
  table.AddRow({"follower", "holds", "behind", "renewed", "lease", "id"});
  for (const KnownFollower& follower : followers) {
    const Lease& lease = follower.lease;
    table.AddRow({lease.name.empty() ? "–" : lease.name, lease.holds.has_value() ? WithCommas(*lease.holds) : "–",
                  follower.behind.has_value() ? WithCommas(*follower.behind) : "–",
                  HumanDuration(follower.renewed_ago) + " ago", follower.alive ? "alive" : "expired",
                  ToHex(lease.follower)});
  }
  return table.Render();
}

}  // namespace weightwire
