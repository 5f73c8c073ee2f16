// A follower: brings a target to newer versions of a run, and keeps it exact.
//
// Everything is fetched, verified and staged before the target is touched. Several versions are staged over each other
// and applied as one change. If an anchor costs fewer bytes than the deltas, or a delta is missing or damaged, the
// follower loads an anchor instead, beside what the target holds. If only the caller applies, a complete anchor is
// staged too, and deltas are staged over it: no step changes the target then.
//
// It is a state machine: Step performs the work of one Phase (see below) and returns what it did. It never waits, and
// knows no clock but the given one. The caller decides when to step again (runner/follow_loop.h), and a simulator can
// stop the follower between any two steps. A step is one of:
//   - a few requests for small objects: records, lists, manifests, the lease. Finding the newest of n versions takes
//     about 2 log2(n) of them;
//   - one fetch: 32 MiB of an anchor, or one part of a delta, or several small parts of together at most 32 MiB;
//   - the decoding of one version (kStage), and folding it with others that are staged;
//   - one call of the target, which takes as long as the target takes: Apply, RunMaintenance, or the commit of a load,
//     which digests the whole model.
// Each step first calls Target::Recover, which has work only after an error.
//
// A lease tells gc what the follower needs (lease_keeper.h).
//
// Thread safety: one thread at a time. Threads that a step starts end with it; with one fetch thread there are none.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "base/threads.h"
#include "codec/kernels/kernels.h"
#include "follow/anchor_load.h"
#include "follow/delta_queue.h"
#include "follow/lease_keeper.h"
#include "follow/policy.h"
#include "follow/staged_versions.h"
#include "follow/targets/target.h"
#include "follow/version_lag.h"
#include "log/fetch_plan.h"
#include "log/run.h"

namespace weightwire {

struct FollowerOptions {
  std::string name{};  // shown by `weightwire followers`
  bool keep_lease = true;
  std::uint64_t lease_seconds = kDefaultLeaseSeconds;
  // Apply what is staged as soon as there is no newer version to stage over it. Otherwise only the caller applies.
  bool apply_at_once = true;
  // With apply_at_once: apply only once the target is more than this many versions behind. Does not delay the first
  // load, nor the version of a pin or a limit.
  std::uint64_t max_lag = 0;
  // Apply each version on its own, instead of several in one change. Skips only versions whose deltas are gone.
  bool every_version = false;
  // Stage further versions while their deltas have at most this many bytes. At least one version is always staged.
  std::uint64_t ahead_bytes = kMaxStagedAheadBytes;
  // Fetch a damaged object up to this many times before another path is planned.
  int fetch_attempts = kFetchAttempts;
  // Requests at a time (delta_queue.h). More than 1 needs a store that allows calls from several threads.
  std::size_t fetch_threads = 1;
};

// What a follower runs on; all must outlive it.
struct FollowerTools {
  const Clock* clock = nullptr;
  const Kernels* kernels = nullptr;
  ThreadPool* pool = nullptr;
};

// The work that a step did.
enum class FollowerStep : std::uint8_t {
  kUpToDate,      // nothing: there is no newer version, or the caller must apply what is staged
  kStarted,       // read the record of the version that the target holds, if it holds one
  kLease,         // wrote the lease and read gc's marks, or failed to in a way that stops nothing
  kRecord,        // found newer versions
  kNothingNewer,  // looked for a newer version: there is none, or the pin or the limit excludes it
  kPlan,          // planned the path to the goal, or began to load the anchor that it starts with
  kFetch,         // fetched parts of deltas, or one that was damaged and will be fetched again
  kLoad,          // the same for a portion of an anchor
  kDetour,        // found a delta or an anchor unusable; another path will be planned
  kStage,         // decoded and verified a version
  kApply,         // the target holds another version
  kMaintenance,   // the target did maintenance
};

struct FollowerStatus {
  std::optional<Version> held;  // by the target
  std::optional<std::uint64_t> held_step;
  std::optional<Version> staged;  // the last version staged; none if nothing is
  std::optional<Version> pinned;
  std::optional<Version> newest;  // the newest version seen
  std::uint64_t lag = 0;          // the number of versions after the one held
  // How long the oldest version after the one held has been known; zero if there is none.
  std::chrono::nanoseconds behind{0};
  bool has_lease = false;
  std::string lease_error;  // why the lease cannot be written; empty if it can
  std::string last_error;   // why the target holds no version any longer; empty once it holds one
  std::string waits_for;    // human-readable; empty if nothing, because of the pin or the limit
  std::uint64_t bytes_fetched = 0;
  std::uint64_t versions_applied = 0;
  std::uint64_t anchors_loaded = 0;
  std::uint64_t objects_fetched_again = 0;
  std::uint64_t detours = 0;  // deltas and anchors that were missing or damaged
};

class Follower {
 public:
  // `id` names the lease. Use the same id for the same target after a restart. `target` must outlive the follower.
  Follower(Run run, Target& target, const Id& id, FollowerOptions options, const FollowerTools& tools);

  // Performs one step. After an error the target is exact and the follower is as before the step, except that a plan
  // that failed is made again from the newest version. Call it again: soon if the error is transient, otherwise later,
  // as base/failure_policy.h says.
  Result<FollowerStep> Step();

  // Holds exactly version `at`: goes forward or back to it and stays. While the run has no such version, follows up to
  // the newest one before it.
  void Pin(Version at) { SetLimits(at, limit_); }
  // Follows the newest version again.
  void Unpin() { SetLimits(std::nullopt, limit_); }
  // Goes no further than version `last`, or, without a value, as far as there are versions. Never goes back: a target
  // that holds a later version stays there.
  void LimitTo(std::optional<Version> last) { SetLimits(pin_, last); }

  // REQUIRES for the next four: HasStaged().
  [[nodiscard]] bool HasStaged() const { return !staged_.empty(); }
  // Everything staged over the version held, as one change; nullptr if it includes the load of an anchor. Steps fold
  // it: it is one when Step returns kUpToDate or an error. In between, Staged and Apply do what is left of that.
  [[nodiscard]] std::shared_ptr<const StagedChange> Staged() {
    return staged_.load() == nullptr ? staged_.Combined() : nullptr;
  }
  [[nodiscard]] const KnownRecord& staged_record() const { return staged_.last(); }
  // Writes everything staged to the target. After an error the target may hold the version of an anchor that was
  // staged; then only the changes after it are still staged.
  Status Apply();
  // Undoes the last Apply, drops what is staged, and pins the follower to the version that the target holds then.
  Status Undo();
  // Digests the whole target. kCorrupt: something else has written to it, and the target holds no version any longer,
  // so that the next steps load one.
  Status Verify();

  [[nodiscard]] const Run& run() const { return run_; }
  [[nodiscard]] FollowerStatus status() const;
  // The record of the version that the target holds, once it has been read.
  [[nodiscard]] const std::optional<KnownRecord>& held_record() const { return held_record_; }
  // Why the lease cannot be written, while that is so.
  [[nodiscard]] const std::optional<Error>& lease_error() const { return lease_.error(); }

  // Renews the lease if it is due. For callers that do other work for long between two steps.
  Status KeepLease();
  // Removes the lease. Call it when following ends for good.
  Status ReleaseLease() { return lease_.Release(); }

 private:
  enum class Phase : std::uint8_t {
    kStart,       // read the record of the version that the target holds
    kFindNext,    // look for the version after the last one staged or held
    kPlan,        // choose the cheapest path to goal_
    kLeaseFirst,  // write a lease that names anchor_, then plan again, because gc may have marked it
    kBeginLoad,   // check anchor_ against its record and begin to load it
    kLoad,        // load anchor_ portion by portion, then commit it
    kFetch,       // fetch parts of the first version in deltas_
    kStage,       // decode the first version in deltas_
    kApply,       // apply what is staged
    kMaintain,    // let the target do its maintenance; there is nothing else to do
  };

  Result<FollowerStep> DoPhase();
  Result<FollowerStep> Start();
  Result<FollowerStep> FindNext();
  Result<FollowerStep> FindGoal();
  Result<FollowerStep> Plan();
  Result<FollowerStep> BeginLoad();
  Result<FollowerStep> Load();
  Result<FollowerStep> FinishLoad();
  Result<FollowerStep> Fetch();
  Result<FollowerStep> Stage();
  Result<FollowerStep> ApplyStaged();
  Result<FollowerStep> Maintain();
  Result<FollowerStep> RenewLease();

  // --- transitions
  // Starts again from what the target holds now.
  void Restart();
  void SetLimits(std::optional<Version> pin, std::optional<Version> limit);
  FollowerStep NothingNewer();
  FollowerStep PlanFor(KnownRecord goal);
  // The phase after a version was staged or applied.
  [[nodiscard]] Phase NextPhase() const;
  // The delta that leads to a version, or an anchor, is unusable for the reason `why`.
  FollowerStep AvoidDelta(Version version, const Error& why);
  FollowerStep AvoidAnchor(const Error& why);
  FollowerStep PlanAgain(const Error& why);
  // Something else has written to the target. Plans a load, if the target holds no version any longer; returns `why`
  // otherwise.
  Result<FollowerStep> LoseHeld(const Error& why);
  void DropPlan();
  void SetHeld(KnownRecord record);
  // Learns of newer versions that may not be staged now.
  Status LookBeyond();

  // The last version staged or held; nullptr if there is none.
  [[nodiscard]] const KnownRecord* Last() const;
  [[nodiscard]] std::optional<Version> held_version() const;
  // The last version that the pin and the limit allow.
  [[nodiscard]] std::optional<Version> LastAllowed() const;
  [[nodiscard]] bool MayGoBeyond(Version version) const { return version < LastAllowed().value_or(version + 1); }
  // True if the pin is older than what the target holds, so that nothing can be built on that.
  [[nodiscard]] bool MustGoBack() const { return pin_.has_value() && held_version() > *pin_; }
  // True if a plan that leads to `goal` still leads to where the pin and the limit allow.
  [[nodiscard]] bool IsWanted(Version goal) const;
  // True if what is staged is to be applied without a call of Apply.
  [[nodiscard]] bool IsApplyDue() const;
  // The newest version that the pin and the limit allow, given that `known` exists.
  [[nodiscard]] Result<std::optional<KnownRecord>> FindNewestAllowed(std::optional<Version> known);
  // Counts a failed attempt at the object that is being fetched. Returns false if fetching it again is useless.
  bool MayFetchAgain(const Error& lost);
  [[nodiscard]] bool IsTooFarAhead() const;
  // Deltas and anchors that must not be used: they are unusable, or gc has marked them.
  [[nodiscard]] Avoid AvoidNow() const;
  const Run run_;
  Target& target_;
  const FollowerOptions options_;
  const FollowerTools tools_;
  LeaseKeeper lease_;

  Phase phase_ = Phase::kStart;
  std::optional<Version> pin_;
  std::optional<Version> limit_;
  bool moved_by_recovery_ = false;          // Recover brought the target to another version; kApply is not returned yet
  std::optional<Error> foreign_write_;      // something else has written to the target; none once it holds a version
  std::optional<KnownRecord> held_record_;  // of the version that the target holds; none before kStart is over

  // The plan.
  std::optional<KnownRecord> goal_;    // the version that the plan leads to
  std::optional<KnownAnchor> anchor_;  // that it starts with
  std::unique_ptr<AnchorLoad> load_;   // of anchor_, in phase kLoad
  DeltaQueue deltas_;
  int failed_attempts_ = 0;  // at the object that is being fetched
  StagedVersions staged_;

  Avoid unusable_;                         // deltas and anchors that are missing or damaged
  std::optional<Error> unusable_because_;  // of the first of them
  VersionLag lag_;
  FollowerStatus counters_;
};

}  // namespace weightwire
