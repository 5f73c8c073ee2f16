// One of several ranks that publish a state together, each its own shards (publish/shards.h). No rank ever sees the
// weights of another, and no call of publish waits for another rank.
//
// The n-th call of publish of every rank belongs together. A call compares the rank's shards with its base copy,
// encodes the difference and returns. In the background, call by call, the rank uploads its part (or its piece of an
// anchor, for a version without a delta), reports that, and waits for the verdict of rank 0, whose process also has the
// RankCommitter. If the verdict is that nothing was published, the base is rolled back at the next call, and what was
// made from it meanwhile fails too. So all ranks go on from the same version.
//
// A rank that gets no verdict in time says so by its tickets, and refuses further calls until it is in touch again; it
// gives nothing up, since the version may be committed.
//
// Whoever is long at something gives signs of life: without one for the deadline a rank is given up, and the call fails
// on all of them.
//
// There is no thread, lock or wait in here: runner/rank_runner.h runs one with threads. The board is whatever brings
// texts from one rank to the others: whoever runs it asks what is wanted and delivers that.
//
// Thread safety: calls marked [guarded] exclude each other; Make is called by one thread; Execute by any.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "log/planted_bugs.h"
#include "publish/base_copy.h"
#include "publish/piece_writer.h"
#include "publish/publisher.h"
#include "publish/rank_committer.h"
#include "publish/rank_messages.h"

namespace weightwire {

struct RankOptions {
  std::uint64_t rank = 0;
  std::uint64_t ranks = 1;
  // So long one waits for a rank that gives no sign of life.
  MonotonicTime deadline = std::chrono::minutes(10);
  // While a part is being sent nothing tells a slow line from one that hangs. So long as this would take, and the
  // deadline, it is called slow.
  std::uint64_t slowest_bytes_per_second = std::uint64_t{256} << 10;
  // As PipelineOptions': what may be on its way.
  std::uint64_t max_versions = 16;
  std::uint64_t max_bytes = std::uint64_t{4} << 30;
  std::uint64_t anchor_every = 100;
  std::uint64_t anchor_percent = 100;
  // Of rank 0: as PublisherOptions'.
  std::optional<FileSystem::Path> carried_directory;
  bool carry_code = false;
  CheckpointOptions anchor_files;
  // A base that is lost is rebuilt from the bucket. Otherwise the next version is a rebase. The same for all ranks.
  bool rebuild = true;
  PlantedBugs bugs;
};

// What a call of publish came to on this rank.
struct RankDraft {
  std::optional<Error> error;  // nothing: the call fails on all ranks
  bool needs_rebase = false;
  std::uint64_t step = 0;
  Version serial = 0;  // the base copy's number
  std::shared_ptr<const Shards> shards;
  bool whole = false;
  std::vector<Digest> before;
  std::vector<Digest> after;
  std::uint64_t changed = 0;
  std::shared_ptr<const DeltaBytes> part;  // none if nothing changed
  std::shared_ptr<const BasePin> pin;      // of this version
  std::uint64_t epoch = 0;                 // of the admission it was made after
};

struct RankAdmission {
  std::optional<Error> stopped;       // nothing will be published any more
  std::optional<Error> out_of_touch;  // not now; the call counts, and fails
  bool full = false;                  // wait
  bool empty = false;                 // nothing of this rank's is on its way
  std::optional<Version> newest_serial;
  Version safe = 0;                           // serials up to this one will not be rolled back
  std::optional<KnownRecord> newest;          // if nothing is on its way
  std::optional<Sha256Digest> newest_layout;  // of all that is on its way, too
  bool whole = false;                         // a version without a delta is to be made
  std::uint64_t epoch = 0;
};

// Puts a rank's part.
struct PartJob {
  std::uint64_t call = 0;
  std::shared_ptr<const DeltaBytes> part;
  Version version = 0;
  bool again = false;
  // Outcome:
  std::optional<PartRef> put;
  std::optional<Error> error;
};

// One step of a rank's piece.
struct PieceJob {
  std::optional<std::uint64_t> call;  // of a version without a delta; none: an anchor by policy
  std::shared_ptr<PieceWriter> writer;
  // Outcome:
  bool complete = false;
  std::optional<Error> error;
};

using RankJob = std::variant<PartJob, PieceJob, CommitJob, CompleteJob>;
enum class RankLane : std::uint8_t { kUpload, kAnchor, kCommit, kComplete };
inline constexpr std::array kAllRankLanes = {RankLane::kUpload, RankLane::kAnchor, RankLane::kCommit,
                                             RankLane::kComplete};

class RankPublisher {
 public:
  // Rank 0 finds the newest version; the others are given what its start() says. kMismatch if the run is not there any
  // more as rank 0 found it.
  static Result<std::unique_ptr<RankPublisher>> Open(Run run, RankOptions options, const PublisherTools& tools,
                                                     std::string_view start);
  // Of rank 0, for the others.
  [[nodiscard]] std::string start() const { return ToJson(committer_->Start()); }
  // Of rank 0: who its records say has written them.
  [[nodiscard]] const Id& writer() const { return committer_->writer(); }

  // --- the caller's side, in this order ---
  [[nodiscard]] RankAdmission Admit() const;  // [guarded]
  // Nothing if it takes that nothing is on its way: wait for that, and admit again. After an error nothing was made.
  // Every call must end in Enqueue or Refuse, or the ranks lose count.
  Result<std::optional<RankDraft>> Make(const StateBits& bits, std::uint64_t step, const RankAdmission& admission);
  Ticket Enqueue(RankDraft draft);                      // [guarded]
  Ticket Refuse(std::uint64_t step, const Error& why);  // [guarded] the call made nothing, and fails on all ranks

  // --- the board, all [guarded] ---
  [[nodiscard]] std::vector<std::string> Wanted() const;
  void Deliver(const std::string& key, const std::string& text);
  [[nodiscard]] std::vector<BoardMessage> TakeOutgoing();
  [[nodiscard]] std::vector<std::string> TakeUnneeded();
  // The board cannot be reached; and it can again.
  void LoseTouch(const Error& why);
  void RegainTouch();

  // --- the work ---
  [[nodiscard]] std::optional<RankJob> Next(RankLane lane);  // [guarded]
  void Execute(RankJob& job) const;
  void Finish(RankJob job);  // [guarded]
  // [guarded] Looks at the time, and says whether that changed anything. To be asked before Next.
  bool Tick();
  [[nodiscard]] std::optional<MonotonicTime> Due(RankLane lane) const;                      // [guarded]
  [[nodiscard]] bool idle() const;                                                          // [guarded]
  [[nodiscard]] const std::optional<Error>& out_of_touch() const { return out_of_touch_; }  // [guarded]
  [[nodiscard]] PublisherStatus status() const;                                             // [guarded]

 private:
  struct Entry {
    std::uint64_t call = 0;
    RankDraft draft;
    Ticket ticket;
    bool in_base = false;  // the base has moved on by it, or what was made after it has been made from it
    bool reported = false;
    bool busy = false;
    std::optional<PartRef> put;
    std::shared_ptr<PieceWriter> writer;
    int attempts = 0;
    std::optional<MonotonicTime> begun;  // when it came to the front, or the last sign of progress since
    std::optional<MonotonicTime> due;
    std::uint64_t alive_told = 0;
    MonotonicTime told_at{0};
    MonotonicTime sent_at{0};  // when the upload of its part began
    std::uint64_t alive_heard = 0;
  };
  // Of an anchor by policy, until rank 0 says that it has ended.
  struct Piece {
    Id anchor;
    std::shared_ptr<PieceWriter> writer;  // none: reported
    std::shared_ptr<const Shards> shards;
    int attempts = 0;
    std::optional<MonotonicTime> due;
    bool busy = false;
    MonotonicTime begun{0};  // or the last sign of progress since
    std::uint64_t alive_told = 0;
    MonotonicTime told_at{0};
  };

  RankPublisher(Run run, RankOptions options, PublisherTools tools);
  Status Start(std::string_view start);
  Result<bool> Rebuild(const KnownRecord& version, const std::shared_ptr<const Shards>& shards, Version serial);
  Result<std::optional<RankDraft>> MakeWhole(const StateBits& bits, RankDraft draft, const RankAdmission& admission);
  void Report(Entry& entry);
  void TakeVerdict(const Verdict& verdict);
  void FailEntries(const Error& why);
  void FinishPart(PartJob job);
  void FinishPiece(PieceJob job);
  void Failed(Entry& entry, const Error& error);
  void GiveSign(Entry& entry, MonotonicTime now);
  void ForgetPiece();
  // When Tick has something to do, if nothing happens before.
  [[nodiscard]] std::optional<MonotonicTime> TouchTimesOut() const;
  [[nodiscard]] std::optional<MonotonicTime> SignIsDue() const;
  [[nodiscard]] std::shared_ptr<PieceWriter> MakePieceWriter(const RankDraft& draft, const AnchorName& anchor) const;
  [[nodiscard]] std::vector<const Entry*> Live() const;
  [[nodiscard]] MonotonicTime Now() const { return tools_.clock->Monotonic(); }

  const Run run_;
  const RankOptions options_;
  const PublisherTools tools_;
  MemoryBaseMaker base_maker_;
  bool made_ = false;  // a call of Make before
  BaseCopy base_;
  std::optional<RankCommitter> committer_;  // of rank 0
  std::vector<std::string> warnings_;

  // Guarded.
  std::uint64_t next_call_ = 0;
  std::deque<Entry> entries_;  // calls without a verdict, in order
  std::uint64_t entry_bytes_ = 0;
  std::optional<KnownRecord> newest_;
  std::optional<Version> newest_serial_;  // the base copy's number of it
  Id next_anchor_;
  bool whole_next_ = false;
  std::uint64_t epoch_ = 0;  // how often something was taken back
  // The last call failed. Until one succeeds each call waits for the one before, on all ranks: otherwise ranks that are
  // a call apart could go on for ever making versions from what another rank has taken back.
  bool recovering_ = false;
  std::optional<Error> stopped_;
  std::optional<Error> out_of_touch_;
  std::optional<Error> last_error_;
  std::optional<Piece> piece_;
  std::vector<BoardMessage> outgoing_;
  std::vector<std::string> unneeded_;
};

}  // namespace weightwire
