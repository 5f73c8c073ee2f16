#include "publish/spool_recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "publish/record_commit.h"

namespace weightwire {
namespace {

Error LostToAnotherWriter(const Run& run, const std::string& directory, const std::optional<KnownRecord>& newest,
                          Version first, Version last) {
  const Version lost = newest.has_value() ? std::min(first, newest->record.version) : first;
  const std::string which =
      first == last ? fmt::format("version {}", last) : fmt::format("versions {} to {}", first, last);
  // Only a person can know that these versions may be dropped.
  return {
      ErrorCode::kMismatch,
      fmt::format("{}, so {} waiting in {} cannot be published any more: see that only one publishes, then start it "
                  "{}, which drops what waits",
                  WhoseRecord(run, lost), which, directory, kHowToDropLost)};
}

}  // namespace

Result<std::vector<SpoolEntry>> RecoverSpool(const Run& run, Spool& spool, const std::string& directory,
                                             const std::optional<KnownRecord>& newest, bool drop_lost) {
  std::optional<KnownRecord> before = newest;
  std::vector<SpoolEntry> waiting;
  WW_TRY(std::vector<FoundEntry> found, spool.Recover());
  bool drop = false;
  for (FoundEntry& one : found) {
    if (drop || !one.entry.ok()) {
      // A version that is committed needs no entry. The versions after a damaged one were made from it.
      drop = drop || !newest.has_value() || one.version > newest->record.version;
      WW_RETURN_IF_ERROR(spool.Remove(one.version));
      continue;
    }
    SpoolEntry& entry = one.entry.value();
    if (entry.known.record.run != run.id()) {
      return Error(ErrorCode::kMismatch,
                   fmt::format("{} is the state directory of another run; use another one", directory));
    }
    bool ours = false;
    if (newest.has_value() && one.version <= newest->record.version) {
      WW_TRY(const auto committed, run.ReadRecord(one.version));
      ours = committed.has_value() && committed->hash == entry.known.hash;
      if (ours) {
        WW_RETURN_IF_ERROR(spool.Remove(one.version));
        continue;
      }
    } else {
      ours = before.has_value() ? CheckFollows(*before, entry.known).ok() : one.version == 0;
    }
    if (!ours) {
      if (!drop_lost) return LostToAnotherWriter(run, directory, newest, one.version, found.back().version);
      drop = true;
      WW_RETURN_IF_ERROR(spool.Remove(one.version));
      continue;
    }
    before = entry.known;
    waiting.push_back(std::move(entry));
  }
  return waiting;
}

}  // namespace weightwire
