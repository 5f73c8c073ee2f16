// A follower: brings a target to newer versions of a run, and holds it exact all the while.
//
// It is a step function: Step does one bounded thing (asks for a record, fetches a part, stages a version, …) and says
// what. It never waits and asks no clock but the one it is given; whoever runs it decides when to step again (runner/),
// and a simulator can stop it between any two effects. Threads it starts only within a step, for requests that are made
// at a time, and none with a single fetch thread.
//
// Everything is fetched, verified and staged before the target is touched. Several versions are staged over each other
// and applied as one change. When the way by deltas costs more bytes than an anchor, or is gone, the anchor is
// taken; it is streamed into the target, which goes on showing the version it holds until that is complete.
//
// A lease tells gc what is still needed (spec/PROTOCOL.md, "Duties of a reader"). Where it cannot be written the
// follower goes on without, says so, and tries again from time to time. A renewal that fails for the moment stops
// nothing as long as the lease lives.
//
// Thread safety: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/result.h"
#include "base/threads.h"
#include "codec/decode/state_view.h"
#include "codec/kernels/kernels.h"
#include "follow/anchor_load.h"
#include "follow/lease_keeper.h"
#include "follow/targets/target.h"
#include "log/plan.h"
#include "log/run.h"

namespace weightwire {

struct FollowerOptions {
  // What people see in `weightwire leases`.
  std::string name{};
  bool keep_lease = true;
  std::uint64_t lease_seconds = kDefaultLeaseSeconds;
  // Apply what is staged as soon as there is no newer version to stage over it; otherwise when told to.
  bool apply_at_once = true;
  // Apply each version on its own, instead of several in one change.
  bool every_version = false;
  // Versions are staged ahead as long as their deltas have no more bytes than this; at least one always is.
  std::uint64_t ahead_bytes = std::uint64_t{1} << 30;
  // A damaged object is fetched so many times before another way is tried.
  int fetch_attempts = 3;
  // Ranges of a large part that are fetched, and hashed, at a time. More than one needs a store that may be used by
  // several threads; then small parts, and records on the way to a version that is known, are fetched several at a time
  // too.
  std::size_t fetch_threads = 1;
};

// What a follower runs on; all must outlive it.
struct FollowerTools {
  const Clock* clock = nullptr;
  const Kernels* kernels = nullptr;
  ThreadPool* pool = nullptr;
};

enum class FollowerStep : std::uint8_t {
  kUpToDate,  // nothing to do until there is a new version, or (not apply_at_once) until told to apply
  kLease,     // wrote the lease and read the marks
  kRecord,    // found a newer version
  kPlan,      // found out how to get there
  kFetch,     // fetched a part of a delta
  kLoad,      // fetched a piece of an anchor
  kStage,     // decoded and verified a version
  kApply,     // the target holds a newer version
  kIdle,      // did some of the target's housekeeping
};

// What a person wants to know.
struct FollowerStatus {
  std::optional<Version> held;
  std::optional<std::uint64_t> held_step;
  std::optional<Version> staged;  // the version that what is staged leads to
  std::optional<Version> newest;  // the newest one seen
  // How long the oldest version that is newer than the one held has been known; zero when there is none.
  std::chrono::nanoseconds behind{0};
  bool has_lease = false;
  std::string lease_error;  // why there is none though one is to be kept
  std::string waits_for;    // in words
  std::uint64_t bytes_fetched = 0;
  std::uint64_t versions_applied = 0;
  std::uint64_t anchors_loaded = 0;
  std::uint64_t objects_fetched_again = 0;
  std::uint64_t detours = 0;  // over an anchor, because a delta was gone or damaged
};

class Follower {
 public:
  // `id` names the lease; the same for the same target over restarts.
  Follower(Run run, Target& target, const Id& id, FollowerOptions options, const FollowerTools& tools);

  // One thing. After an error the follower is as before it and the target is exact; stepping again is right, later if
  // the code is kUnavailable, and after a person has looked at it otherwise.
  Result<FollowerStep> Step();

  // Goes no further than this version; nothing: as far as there is. A target that holds a later one stays as it is,
  // unless `back` is set: then it is brought back to exactly that version.
  void StandStill(std::optional<Version> at, bool back = false);

  // What is staged over the version held, as one change. REQUIRES for this and Apply: HasStaged().
  [[nodiscard]] bool HasStaged() const { return !staged_.empty(); }
  [[nodiscard]] std::shared_ptr<const StagedChange> Staged() const;
  // Writes it to the target.
  Status Apply();
  // Takes the last Apply back, drops what is staged, and stands still on the version held then.
  Status Undo();

  [[nodiscard]] FollowerStatus status() const;
  // The record of the version held, once it has been read.
  [[nodiscard]] const std::optional<KnownRecord>& held_record() const { return held_; }
  // Why the lease cannot be written, while that is so.
  [[nodiscard]] const std::optional<Error>& lease_error() const { return lease_.error(); }

  // Renews the lease if it is due. Call it periodically while a caller does other work for long between two steps.
  Status KeepLease();
  // Removes the lease. Call it when the target will not be followed into any more.
  Status ReleaseLease() { return lease_.Release(); }

 private:
  // A version to be staged: its record, and its parts as far as they are here.
  struct Queued {
    KnownRecord known;
    std::vector<std::vector<std::uint8_t>> parts;
    int attempts = 0;
  };
  // A version that is staged; or several, which are one change by now.
  struct StagedVersion {
    KnownRecord known;  // the last of them
    std::shared_ptr<const StagedChange> change;
    std::uint64_t versions = 1;
  };
  // A part to be fetched, and what came of it.
  struct WantedPart {
    Queued* of;
    const PartRef* part;
    std::vector<std::uint8_t> bytes;
    Status read;
  };
  Result<FollowerStep> Start();
  void BeginAnew();
  Result<FollowerStep> RenewLease();
  Result<FollowerStep> NextRecord();
  Result<FollowerStep> Plan(const KnownRecord& target);
  Result<FollowerStep> Fetch();
  [[nodiscard]] std::vector<WantedPart> PartsWanted();
  void FetchParts(std::span<WantedPart> wanted) const;
  void QueueAhead(Version last);
  Result<FollowerStep> Load();
  Result<FollowerStep> FinishLoad();
  Result<FollowerStep> Stage();
  Result<const StateView*> ViewOfStaged();
  void FoldStaged();
  void DropStaged();

  [[nodiscard]] bool LeaseIsDue() const;
  [[nodiscard]] const KnownRecord* Top() const;
  // The last version staged or held.
  [[nodiscard]] const KnownRecord* Reached() const;
  [[nodiscard]] bool MayGoBeyond(Version version) const { return !stop_at_.has_value() || version < *stop_at_; }
  [[nodiscard]] Avoid AvoidNow() const;
  [[nodiscard]] bool IsFree(Version from, Version to) const {
    return gone_.Free(from, to) && lease_.marked().Free(from, to);
  }
  [[nodiscard]] std::uint64_t BytesAhead() const;
  // The delta of a version cannot be had: remembers it and forgets what was built on it.
  Result<FollowerStep> GiveUpDelta(Version version, const Error& why);
  Result<FollowerStep> GiveUpAnchor(AnchorName name, const Error& why);
  // Why the target does not hold what it held, by its full digest: somebody else has written to it.
  Result<std::optional<Error>> TargetTrouble();
  void Forget();
  void Saw(const KnownRecord& record);

  Run run_;
  Target& target_;
  FollowerOptions options_;
  FollowerTools tools_;
  LeaseKeeper lease_;

  bool started_ = false;
  bool moved_ = false;  // the target came to another version when it was mended, and nobody was told
  std::optional<Version> stop_at_;
  bool go_back_ = false;
  std::optional<KnownRecord> held_;
  std::vector<StagedVersion> staged_;
  std::optional<StateView> view_;  // the target seen through all that is staged, once it is needed
  std::deque<Queued> queue_;
  std::unique_ptr<AnchorLoad> load_;
  int load_attempts_ = 0;  // at the object that is being loaded
  // The newest version there was when we last looked; the way to it is planned.
  std::optional<KnownRecord> newest_;
  // What could not be had. Forgotten once the target holds a newer version.
  Avoid gone_;
  std::optional<Error> gone_why_;  // of the first of it
  // The target has other bits than those of the version it held, so only an anchor leads anywhere.
  bool target_changed_ = false;
  std::optional<AnchorName> wanted_anchor_;  // for the lease
  bool plan_again_ = false;                  // once the lease says so
  // When versions newer than the one held were first seen, oldest first.
  std::deque<std::pair<Version, std::chrono::nanoseconds>> seen_;
  std::optional<Version> newest_seen_;  // ever
  FollowerStatus counters_;
};

}  // namespace weightwire
