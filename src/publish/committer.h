// The committer makes versions: it takes one contribution per rank for each call of publish, decides the record,
// commits it, and gives a verdict on the call. A single process is a group of one rank.
//
//   contributions of a call ──DecideJob──▶ record decided ──CommitJob──▶ committed ─▶ verdict
//                              checked, made,               layout and part sent,
//                              spooled                      record created
//
// Deciding fixes the bytes of a record. A group of one decides calls ahead: several may be decided, and with a spool
// also durable, while the first is uploaded. Several ranks have sent their parts before they contribute, and only one
// call of theirs is in work at a time.
//
// What happens after an error:
//   - in deciding, in a group of one: the call and those after it fail, and the base copy is rolled back;
//   - in committing, in a group of one: retried until it succeeds, because what is spooled must not be lost;
//   - of several ranks, which wait for the verdict: retried until the deadline, and only if that can help; then the
//   call
//     fails. Once a record may have been created, only the store can tell, and it is asked for as long as it takes;
//   - another writer's record: the publisher stops for good.
//
// The committer also decides when an anchor is due by policy. The verdict asks the ranks to write it.
//
// Pure state but for Execute: calls exclude each other, except that Execute may run beside any.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/failure_policy.h"
#include "base/random.h"
#include "base/result.h"
#include "log/run.h"
#include "publish/anchor_policy.h"
#include "publish/anchor_writer.h"
#include "publish/contribution.h"
#include "publish/publisher_options.h"
#include "publish/record_maker.h"
#include "publish/sooner.h"
#include "publish/spool.h"

namespace weightwire {

// Decides a record: hashes the part of a group of one, completes an anchor whose pieces the ranks have sent, makes the
// record, and spools it.
struct DecideJob {
  std::uint64_t call = 0;
  RecordRequest request;
  std::shared_ptr<const Cover> cover;  // of an earlier call, if there was one
  AnchorName anchor_name;              // of the version's own anchor, if the ranks have sent pieces of it
  // Outcome:
  bool same = false;  // it would be the newest version again
  std::optional<MadeRecord> made;
  std::optional<Error> error;
};

// Puts the layout, and the part of a group of one; commits the record; removes it from the spool.
struct CommitJob {
  std::uint64_t call = 0;
  MadeRecord made;
  std::shared_ptr<const DeltaBytes> part;    // none: read it from the spool, if there is one
  std::shared_ptr<const Layout> new_layout;  // to be put
  bool again = false;                        // an earlier attempt may have done some of it
  // Outcome:
  enum class Outcome : std::uint8_t { kCommitted, kStopped, kError };
  Outcome outcome = Outcome::kError;
  bool record_sent = false;
  std::optional<Error> error;
};

class Committer {
 public:
  // What it is given by reference must outlive it; `spool` may be none. Several ranks (options.group) contribute over a
  // board and in shards. A call of theirs that cannot be committed within 80 % of the deadline fails, so that all ranks
  // have the verdict before their own deadlines. A single process never abandons a decided version.
  Committer(Run run, const PublisherOptions& options, AnchorOptions anchors, Random& random, Spool* spool,
            std::optional<KnownRecord> newest, std::optional<KnownAnchor> newest_anchor);

  [[nodiscard]] const Id& writer() const { return writer_; }
  [[nodiscard]] const Id& next_anchor() const { return next_anchor_; }

  // --- calls, in order ---
  // What this process knows of a call. Before Take.
  void SetContext(std::uint64_t call, CallContext context) { contexts_[call] = std::move(context); }
  // The contributions of all ranks, none of which has an error.
  void Take(std::uint64_t call, std::vector<Contribution> contributions, MonotonicTime now);
  // The call has no version, because a rank has nothing to contribute or is silent.
  void Fail(std::uint64_t call, const Error& error, bool rebase);
  // A version that an earlier process has decided and spooled. REQUIRES: it follows the newest one here.
  void Resume(std::uint64_t call, SpoolEntry entry);
  std::optional<Verdict> TakeVerdict();

  // --- the work ---
  std::optional<DecideJob> NextDecide(MonotonicTime now);
  std::optional<CommitJob> NextCommit(MonotonicTime now);
  void Execute(DecideJob& job) const;
  void Execute(CommitJob& job) const;
  void Finish(DecideJob job, MonotonicTime now);
  void Finish(CommitJob job, MonotonicTime now);
  // Looks at the time, and returns true if that changed anything.
  bool Tick(MonotonicTime now);
  // When the lane has something to do, if nothing else happens before.
  [[nodiscard]] std::optional<MonotonicTime> DecideDue() const;
  [[nodiscard]] std::optional<MonotonicTime> CommitDue() const;

  // --- anchors by policy ---
  // Complete, or abandoned.
  void AnchorCompleted(KnownAnchor anchor);
  void AnchorAbandoned(const Error& why);
  // Without its being abandoned: a later version is about to replace the base it is read from.
  void DropAnchor() { anchor_.reset(); }
  void SetAnchorError(const Error& why) { anchor_error_ = why; }
  // Of the version whose anchor is being written.
  [[nodiscard]] const std::optional<AnchorSubject>& anchor_in_work() const { return anchor_; }

  // --- status ---
  [[nodiscard]] bool IsDecided(std::uint64_t call) const;
  // Whether an anchor will be written of a call that is decided.
  [[nodiscard]] bool PlansAnchor(std::uint64_t call) const;
  // The ranks still wait for a verdict, and an attempt has failed since this was asked.
  [[nodiscard]] bool TakeProgress() { return std::exchange(progress_, false); }
  [[nodiscard]] bool idle() const { return pending_.empty() && verdicts_.empty() && !anchor_.has_value(); }
  [[nodiscard]] bool stopped() const { return stopped_; }
  [[nodiscard]] const std::optional<KnownRecord>& newest() const { return newest_; }
  [[nodiscard]] const std::optional<KnownAnchor>& newest_anchor() const { return newest_anchor_; }
  [[nodiscard]] const std::shared_ptr<const Cover>& cover() const { return cover_; }
  [[nodiscard]] const std::optional<Error>& anchor_error() const { return anchor_error_; }
  [[nodiscard]] const std::optional<Error>& last_error() const { return last_error_; }

 private:
  // A call whose contributions are complete, and which has no verdict yet.
  struct Pending {
    Pending(std::uint64_t of_call, const BackoffPolicy& retry) : call(of_call), backoff(retry) {}

    std::uint64_t call = 0;
    std::vector<Contribution> contributions;
    CallContext context;
    std::optional<MadeRecord> made;  // once it is decided
    std::shared_ptr<const Layout> new_layout;
    bool plans_anchor = false;
    bool again = false;
    bool maybe_committed = false;
    std::optional<Error> error;  // of the last attempt
    MonotonicTime taken{0};
    Backoff backoff;
    std::optional<MonotonicTime> due;
    bool busy = false;
  };

  [[nodiscard]] const Pending* Find(std::uint64_t call) const;
  [[nodiscard]] bool AnchorIsDue(const Record& record, const Layout& layout) const;
  void FailedAttempt(std::size_t index, const Error& error, MonotonicTime now);
  [[nodiscard]] bool in_shards() const { return options_.group.has_value(); }
  // Gives the verdict, and drops the calls after it, which were made from it.
  void FailFrom(std::size_t index, const Error& error);
  // The verdict gets the next anchor's id.
  void Tell(Verdict verdict);
  [[nodiscard]] std::optional<MonotonicTime> TimesOut() const;
  Status PutParts(const CommitJob& job) const;

  const Run run_;
  const PublisherOptions& options_;
  const AnchorOptions anchors_;
  Random& random_;
  Spool* const spool_;
  const Id writer_;

  std::optional<KnownRecord> newest_;  // committed
  std::map<std::uint64_t, CallContext> contexts_;
  std::deque<Pending> pending_;
  std::deque<Verdict> verdicts_;
  std::shared_ptr<const Cover> cover_;
  Id next_anchor_;
  bool decide_busy_ = false;
  bool commit_busy_ = false;
  bool stopped_ = false;
  bool progress_ = false;
  std::optional<Error> last_error_;

  std::optional<KnownAnchor> newest_anchor_;  // complete
  std::optional<AnchorSubject> anchor_;
  AnchorBackoff anchor_backoff_;
  std::optional<Error> anchor_error_;
};

}  // namespace weightwire
