// Checks that a follower fetches nothing without a lease (spec/PROTOCOL.md, "Duties of a reader", 5).
//
// The check sees each confirmed write of a lease, each list of marks and each fetch. A fetch of a part, or of a file of
// an anchor, is a violation unless
//   - a lease that needs the object has been written, and the bucket has confirmed it;
//   - that lease was active when the follower's step began (time may pass within a step, which cannot renew it);
//   - the follower has listed gc's marks since. It need not list them again after each renewal in time, because a gc
//     that sees an active lease respects it.
// An anchor.json may be read before a lease names the anchor: without it there is no plan that could need the anchor.
//
// A follower that keeps no lease has no LeaseCheck: it depends on gc's minimum age, as one that may not write does.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "log/lease.h"
#include "sim/world.h"

namespace weightwire::sim {

class LeaseCheck {
 public:
  LeaseCheck(World& world, std::string follower) : world_(world), follower_(std::move(follower)) {}

  void BeginStep() { step_began_ = world_.clock().Wall(); }
  void OnLeaseWritten(const Lease& lease) { written_.push_back({lease, world_.clock().Wall(), false}); }
  void OnLeaseRemoved() { written_.clear(); }
  void OnMarksListed() {
    for (Written& written : written_) written.marks_listed = true;
  }
  void OnFetch(std::string_view key);

 private:
  struct Written {
    Lease lease;
    WallTime at;
    bool marks_listed = false;  // after it
  };

  World& world_;
  const std::string follower_;
  WallTime step_began_{};
  std::vector<Written> written_;  // in order; each replaces the previous one
};

// True if a follower with this lease may need the object.
[[nodiscard]] bool IsNeeded(const Lease& lease, std::string_view key);

}  // namespace weightwire::sim
