// The one among several ranks who commits: takes what every rank says it has uploaded for a call of publish, checks
// that it fits together, and makes a version of it, or says why not. It belongs to rank 0's process, and knows the
// ranks by what they put on the board alone (rank_messages.h).
//
// Checked before there is a record: that all ranks mean the same step and layout, that their shards cover the state
// exactly once, and that the digests of their bases add up to the state of the version before. So a rank that is
// behind, or whose base is not what it thinks, cannot get into a version. The new state's digest is the sum over all
// ranks.
//
// A rank that gives no sign of life within the deadline, from the first sign of any rank on, makes the call fail, for
// all ranks. What was uploaded for it is left to gc. Only one thing is not decided by a deadline: whether a record that
// was sent is there. That is asked until known.
//
// Pure state but for Execute; calls exclude each other, except that Execute may run beside anything.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/result.h"
#include "log/planted_bugs.h"
#include "log/run.h"
#include "publish/anchor_writer.h"
#include "publish/pipeline.h"
#include "publish/rank_messages.h"
#include "publish/shards.h"

namespace weightwire {

struct CommitterOptions {
  std::uint64_t ranks = 1;
  MonotonicTime deadline = std::chrono::minutes(10);  // of silence
  std::uint64_t anchor_every = 100;                   // as PipelineOptions'
  std::uint64_t anchor_percent = 100;
  MonotonicTime anchor_age = std::chrono::hours(12);
  AnchorOptions anchors;
  PlantedBugs bugs;
};

// An anchor whose pieces are all in the store.
struct AssembledAnchor {
  AnchorManifest manifest;  // without the files that are yet to be put
  std::string index;        // the text of the index of shards; empty: there is one file
};

// Puts what makes pieces an anchor, and commits a record.
struct CommitJob {
  std::uint64_t call = 0;
  Record record;                             // all but an anchor of its own
  std::shared_ptr<const Layout> new_layout;  // to be put
  std::optional<AssembledAnchor> assembled;  // the version has no delta
  // Decided by the first attempt that gets there:
  std::optional<KnownAnchor> anchor;
  std::string record_json;
  bool record_sent = false;  // by any attempt
  // Outcome:
  UploadJob::Outcome outcome = UploadJob::Outcome::kError;
  std::optional<Error> error;
};

// Puts what makes pieces an anchor of a version that is committed.
struct CompleteJob {
  AssembledAnchor assembled;
  // Outcome:
  std::optional<KnownAnchor> anchor;
  std::optional<Error> error;
};

class RankCommitter {
 public:
  // `random` and `clock`, of which it needs the time of day alone, must outlive it.
  RankCommitter(Run run, CommitterOptions options, Random& random, const Clock& clock,
                std::optional<KnownRecord> newest, std::optional<KnownAnchor> newest_anchor);

  [[nodiscard]] GroupStart Start() const;
  [[nodiscard]] const Id& writer() const { return writer_; }
  // What rank 0 is about to publish by a call.
  void KnowLayout(std::uint64_t call, std::shared_ptr<const Layout> layout) { layouts_[call] = std::move(layout); }

  // --- the board ---
  [[nodiscard]] std::vector<std::string> Wanted() const;
  void Deliver(const std::string& key, const std::string& text, MonotonicTime now);
  [[nodiscard]] std::vector<BoardMessage> TakeOutgoing() { return std::exchange(outgoing_, {}); }
  // Keys that nobody reads any more.
  [[nodiscard]] std::vector<std::string> TakeUnneeded() { return std::exchange(unneeded_, {}); }

  // --- the work ---
  // Looks at the time, and says whether that changed anything.
  bool Tick(MonotonicTime now);
  // When there will be something to do, if nothing happens before: for Tick and NextCommit, for Tick and NextComplete.
  [[nodiscard]] std::optional<MonotonicTime> CommitDue() const { return Sooner(TickDue(), due_); }
  [[nodiscard]] std::optional<MonotonicTime> CompleteDue() const {
    return Sooner(TickDue(), anchor_.has_value() ? anchor_->due : std::nullopt);
  }
  std::optional<CommitJob> NextCommit(MonotonicTime now);
  void Finish(CommitJob job, MonotonicTime now);
  std::optional<CompleteJob> NextComplete(MonotonicTime now);
  void Finish(CompleteJob job, MonotonicTime now);
  void Execute(CommitJob& job) const;
  void Execute(CompleteJob& job) const;

  // Nothing is being decided, and every rank has seen what was, or had the time to.
  [[nodiscard]] bool idle() const;
  [[nodiscard]] const std::optional<KnownAnchor>& newest_anchor() const { return newest_anchor_; }
  [[nodiscard]] std::optional<Version> anchor_in_work() const;
  [[nodiscard]] const std::optional<Error>& anchor_error() const { return anchor_error_; }
  [[nodiscard]] const std::optional<Error>& last_error() const { return last_error_; }

 private:
  // The ranks' shards, as they have been checked.
  struct Cover {
    std::shared_ptr<const Layout> layout;
    std::vector<std::string> texts;
    std::vector<std::shared_ptr<const Shards>> shards;
  };
  // A verdict that not all ranks have seen.
  struct Told {
    std::vector<bool> seen;
    MonotonicTime at{0};
    bool late = false;              // it is not waited for any more; but a rank that comes back will need it
    std::vector<std::string> keys;  // of the call
  };
  struct Anchor {
    AnchorName name;
    std::shared_ptr<const Layout> layout;
    Sha256Digest state{};
    std::uint64_t delta_bytes = 0;
    std::vector<std::optional<PieceReport>> pieces;
    std::optional<AssembledAnchor> assembled;
    std::vector<std::uint64_t> alive;  // signs of life by rank
    MonotonicTime begun{0};
    std::vector<MonotonicTime> heard;  // the last sign by rank
    int attempts = 0;
    std::optional<MonotonicTime> due;
    bool busy = false;
  };

  void Decide(MonotonicTime now);
  // Nothing if it would be the newest version once more.
  Result<std::optional<CommitJob>> MakeVersion();
  Result<const Cover*> CheckShards(const std::shared_ptr<const Layout>& layout, std::vector<std::string> texts);
  [[nodiscard]] Result<AssembledAnchor> Assemble(const AnchorName& name, const Cover& cover, const Sha256Digest& state,
                                                 std::uint64_t delta_bytes,
                                                 const std::vector<std::optional<SentPiece>>& pieces) const;
  [[nodiscard]] Result<KnownAnchor> PutAssembled(const AssembledAnchor& assembled) const;
  [[nodiscard]] bool AnchorIsDue(const Record& record, std::uint64_t model_bytes, MonotonicTime now) const;
  void StartAnchor(const Record& record, MonotonicTime now);
  // A rank gave a sign of life for the call.
  void Heard(std::uint64_t rank, MonotonicTime now);
  // Those who wait for the verdict learn that it is worked on.
  void TellAlive();
  void Fail(const Error& error, bool rebase, MonotonicTime now);
  void Tell(Verdict verdict, MonotonicTime now);
  void GiveUpAnchor(const Error& why, MonotonicTime now);
  void EndAnchor();
  // When Tick has something to do, if nothing happens before.
  [[nodiscard]] std::optional<MonotonicTime> TickDue() const;
  [[nodiscard]] std::optional<MonotonicTime> CallTimesOut() const;
  [[nodiscard]] std::optional<MonotonicTime> AnchorTimesOut() const;

  const Run run_;
  const CommitterOptions options_;
  Random& random_;
  const Clock& clock_;
  const Id writer_;

  std::optional<KnownRecord> newest_;
  std::optional<KnownAnchor> newest_anchor_;
  Id next_anchor_;
  bool stopped_ = false;

  // The call that is to be decided.
  std::uint64_t call_ = 0;
  std::map<std::uint64_t, std::shared_ptr<const Layout>> layouts_;
  std::vector<std::optional<RankReport>> reports_;
  std::vector<std::uint64_t> alive_;    // signs of life by rank
  std::optional<MonotonicTime> begun_;  // the first sign of any rank: others are waited for from then on
  std::vector<MonotonicTime> heard_;    // the last sign by rank, or begun_
  std::uint64_t alive_told_ = 0;
  std::optional<CommitJob> job_;
  MonotonicTime decided_{0};  // when there was a job
  bool job_busy_ = false;
  bool maybe_committed_ = false;
  int attempts_ = 0;
  std::optional<MonotonicTime> due_;

  Cover cover_;
  std::map<std::uint64_t, Told> told_;
  std::optional<Anchor> anchor_;
  std::vector<Id> ended_;     // anchors whose end is on the board
  int anchors_given_up_ = 0;  // one after another
  MonotonicTime no_anchor_before_{0};
  std::optional<Error> anchor_error_;
  std::optional<Error> last_error_;
  std::vector<BoardMessage> outgoing_;
  std::vector<std::string> unneeded_;
};

}  // namespace weightwire
