// Keeps a follower's lease in the store, so that gc leaves what the follower needs (spec/PROTOCOL.md, "Duties of a
// reader"). The keeper decides when to write the lease, writes it, reads gc's marks after each write, and removes it.
//
// A follower that may not write a lease still follows. The keeper then reports the error and tries again periodically.
// Meanwhile only gc's minimum age protects the objects that the follower needs.
//
// Thread safety: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "follow/policy.h"
#include "log/fetch_plan.h"
#include "log/lease.h"
#include "log/mark.h"
#include "log/run.h"

namespace weightwire {

struct LeaseOptions {
  bool keep = true;  // false: write no lease and read no marks
  std::string name;  // shown by `weightwire followers`
  std::uint64_t seconds = kDefaultLeaseSeconds;
};

// The objects that a lease must protect.
struct LeaseNeeds {
  std::optional<Version> holds{};      // the version that the target holds, and every delta after it
  std::optional<AnchorName> anchor{};  // an anchor to load, and every delta after it
  std::optional<Version> loaded{};     // a version loaded but not held yet: every delta after it
};

class LeaseKeeper {
 public:
  // `id` names the lease. `clock` must outlive the keeper.
  LeaseKeeper(Run run, const Id& id, LeaseOptions options, const Clock& clock);

  // Returns true if the lease must be written now: there is none, it is old, it names no version while `holds` is one,
  // it names another version than `holds` for a while, the target went back to `holds`, or the pause after a failed
  // write is over.
  [[nodiscard]] bool IsDue(std::optional<Version> holds) const;
  // Returns true while the lease that was written last has not expired. Counts from before the write was sent.
  [[nodiscard]] bool IsAlive() const;
  // Returns true if `anchor` may be loaded: the lease names it, or no lease is kept or can be written.
  [[nodiscard]] bool Protects(const AnchorName& anchor) const;

  // Writes the lease, then reads the marks. Returns an error only if a transient one left something unprotected: the
  // lease has expired, or does not name needs.anchor yet, or the marks could not be read.
  Status Renew(const LeaseNeeds& needs);
  // Removes the lease.
  Status Release();

  // Why the lease cannot be written, while that is so and waiting does not help.
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }
  // Anchors and deltas that gc has marked for deletion, as of the last write.
  [[nodiscard]] const Avoid& marked() const { return marked_; }
  [[nodiscard]] bool IsMarked(const std::string& key) const;

 private:
  // Returns true if the lease does not protect all deltas after the version held, because the target went back to it.
  [[nodiscard]] bool NeedsTooLittle(std::optional<Version> holds) const;
  [[nodiscard]] Lease LeaseFor(const LeaseNeeds& needs) const;
  Status Write(const LeaseNeeds& needs);
  Status ReadMarks();

  const Run run_;
  const Id id_;
  const LeaseOptions options_;
  const Clock& clock_;
  const std::chrono::nanoseconds lifetime_;

  std::optional<MonotonicTime> written_at_;  // just before the last write that succeeded was sent
  std::optional<Version> holds_;             // as that lease says
  // The deltas after this version are protected, even if the result of a later write is unknown.
  std::optional<Version> needs_from_;
  std::optional<AnchorName> anchor_;        // as that lease says
  std::optional<MonotonicTime> failed_at_;  // of the last write that failed, until one succeeds
  std::optional<Error> error_;
  std::vector<Mark> marks_;
  Avoid marked_;  // the anchors and deltas that they name
};

}  // namespace weightwire
