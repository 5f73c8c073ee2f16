// Keeping house: removes what the policy does not keep and no lease needs (spec/PROTOCOL.md, "Duties of gc").
//
// A step function: no thread, no waiting and no clock of its own. All times are the store's. Every effect is one step,
// so a process may end between any two; another collector then does what is left.
//
//   Collector collector(run, options, random);
//   for (;;) {
//     WW_TRY(const GcStep step, collector.Step());
//     if (step.what == GcStep::What::kDone) break;
//     if (step.what == GcStep::What::kWaits) ... wait for step.wait ...
//   }
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "log/policy.h"
#include "log/retention.h"
#include "log/run.h"

namespace weightwire {

struct GcOptions {
  RetentionPolicy policy;
  // Between saying what goes and removing it; for readers that keep no lease.
  std::chrono::seconds grace = kGcGrace;
  bool dry_run = false;  // only look; write nothing
  // Objects removed at a time. More than one needs a store that may be used by several threads.
  std::size_t remove_threads = 1;
};

struct GcStep {
  enum class What : std::uint8_t { kWorked, kWaits, kDone };
  What what = What::kWorked;
  std::chrono::milliseconds wait{0};  // of kWaits: how long to wait before the next step; stepping earlier is harmless
  std::string text;                   // what was done, for people
};

struct GcAmount {
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;

  GcAmount& operator+=(const GcAmount& other) {
    objects += other.objects;
    bytes += other.bytes;
    return *this;
  }
  GcAmount& operator-=(const GcAmount& other) {
    objects -= other.objects;
    bytes -= other.bytes;
    return *this;
  }
  bool operator==(const GcAmount&) const = default;
};

// What stays, by the first rule that keeps it.
struct GcKept {
  GcAmount uncommitted;  // of versions newer than the newest one
  GcAmount by_anchors;   // RetentionPolicy::anchors
  GcAmount by_versions;  // RetentionPolicy::versions
  GcAmount by_minimum_age;
  GcAmount by_leases;  // what only leases keep
};

struct GcProgress {
  GcAmount seen;       // below deltas/ and anchors/
  GcAmount deletable;  // of that, what neither policy nor leases keep
  GcKept kept;         // the rest, once the survey is complete
  GcAmount removed;
  GcAmount expired;  // also removed: old leases of followers that ended, and old probes of writers that crashed
  std::uint64_t active_leases = 0;
  // A lease that cannot be read may need anything, so gc deletes nothing while it may be active.
  std::uint64_t unreadable_leases = 0;
  bool more = false;    // there is more than one mark names: collect again
  std::string blocked;  // why this pass must delete nothing; empty if nothing blocks it
};

// One pass over a run. One thread at a time; `random` must outlive it, and the run's store too.
class Collector {
 public:
  // REQUIRES: CheckPolicy(options.policy).ok().
  Collector(Run run, const GcOptions& options, Random& random);

  // Does one small thing: a request or a few. After an error nothing is lost: calling again tries that thing again.
  Result<GcStep> Step();

  // Cancels the pass. Deletes its mark and returns true, or returns false if deletion has started; a later pass must
  // then finish it. Do not call Step() again.
  Result<bool> Withdraw();

  [[nodiscard]] const GcProgress& progress() const { return progress_; }
  // The keys that this pass may delete. The list is complete once Step has returned kWaits or kDone.
  [[nodiscard]] const std::vector<Removal>& deletable() const { return deletable_; }

 private:
  enum class Phase : std::uint8_t {
    kBegin,
    kChains,
    kListAnchors,
    kExamine,
    kListDeltas,
    kPutMark,
    kGrace,
    kReadLeasesAgain,
    kRemove,
    kRemoveMark,
    kRemoveOldMarks,
    kRemoveExpiredLeases,
    kRemoveExpiredProbes,
    kDone,
  };

  // Another collector's mark that is older than the grace time.
  struct OldMark {
    Id id;
    std::unordered_set<std::string> keys;
    std::set<std::string> left;  // of the keys: those that something was found under
  };

  struct Folder {
    SurveyedDelta delta;
    std::vector<ObjectInfo> objects;
  };

  enum class Found : std::uint8_t { kSome, kNothing, kCompleted };

  Result<GcStep> Begin();
  Result<GcStep> FollowChains();
  Result<GcStep> ListAnchors();
  Result<GcStep> Examine();
  Result<GcStep> ListDeltas();
  Result<GcStep> PutMark();
  Result<GcStep> WaitForGrace();
  Result<GcStep> ReadLeasesAgain();
  Result<GcStep> RemoveNext();
  Result<GcStep> RemoveMark();
  Result<GcStep> RemoveOldMarks();
  Result<GcStep> RemoveExpired(std::string_view prefix, Phase next);

  Result<AnchorCondition> ConditionOf(const AnchorName& name) const;
  Status JudgeFolder(const Folder& folder);
  // The old parts in a folder that stays which its record does not name: nobody has committed them.
  [[nodiscard]] Result<std::vector<Removal>> UnnamedParts(const Folder& folder) const;
  // Puts objects of it into queue_, which is empty.
  Result<Found> FillQueue(const Removal& removal);
  void CountSeen(const ObjectInfo& object, const std::string& folder);
  void Add(Removal removal);
  // Counts what the rule keeps. REQUIRES: it keeps something.
  void CountKept(KeepRule rule, GcAmount amount);
  [[nodiscard]] bool IsLeased(const Removal& removal) const;
  [[nodiscard]] bool IsFull() const;
  GcStep SurveyDone();
  // Ends the pass without deleting anything, because of `why`.
  GcStep Block(std::string why);
  GcStep Done(std::string text);

  const Run run_;
  const GcOptions options_;
  const Id mark_id_;
  Phase phase_ = Phase::kBegin;
  GcProgress progress_;

  // The survey.
  WallTime now_;   // when it began
  Record newest_;  // the newest one
  SurveyedVersions versions_;
  std::vector<OldMark> old_marks_;
  ActiveLeases leases_;
  std::vector<SurveyedAnchor> anchors_;
  Kept kept_;
  std::string after_;  // how far the list has got
  bool listed_all_ = false;
  std::deque<Folder> folders_;  // the last one may go on in the next page
  std::vector<Removal> deletable_;

  // Removing.
  bool wait_for_grace_ = false;
  std::vector<Removal> to_remove_;
  std::size_t removing_ = 0;  // index in to_remove_
  bool touched_ = false;      // something of it is removed already
  std::deque<ObjectInfo> queue_;
};

}  // namespace weightwire
