// A publisher: makes versions of a run from the states it is given, and brings them to the bucket in order.
//
//   caller's thread                jobs, in the background                        rank 0, or the only process
//   state ─▶ VersionMaker ─▶ Draft ─▶ parts, pieces sent ─▶ Contribution ─▶ board ─▶ Committer ─▶ record
//                            (the caller continues here)                     board ◀─ Verdict ◀──────┘
//
// A single process is a group of one rank: it calls its committer directly, and its committer sends the part. With a
// state directory it survives a crash: it publishes what was spooled, and adopts the base file (version_maker.h).
//
// With several ranks each publishes its own shards (publish/shards.h) and never sees the weights of another. Each rank
// numbers its calls; call n of every rank forms one version, and no call waits for another rank. Rank 0's process also
// has the committer. Its verdicts come in the order of the calls. When a call fails, every rank rolls its base copy
// back and drops the later drafts built on it. After a failure calls run one at a time until one succeeds; otherwise
// ranks that are one call apart could keep invalidating each other's drafts.
//
// What may happen on the caller's thread: Admit, Enqueue and Refuse have no effects. Make compares and encodes; if the
// base is lost, it also downloads the newest version, up to the whole model (version_maker.h). If the layout changes
// and the base does not tell what it was, it reads the newest version's layout (same_model.h).
//
// The publisher has no thread, lock or wait. runner/publisher_runner.h runs it with threads; Publish and Work run it
// with none: it offers jobs lane by lane, and the runner executes each without a lock and returns it with Finish. Lanes
// do not wait for each other, so an anchor by policy never delays a delta.
//
// Thread safety: calls marked [guarded] exclude each other; Make is called by one thread; Execute by any.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/failure_policy.h"
#include "base/filesystem.h"
#include "base/result.h"
#include "log/run.h"
#include "publish/anchor_source.h"
#include "publish/anchor_writer.h"
#include "publish/board_host.h"
#include "publish/board_link.h"
#include "publish/committer.h"
#include "publish/draft.h"
#include "publish/piece_writer.h"
#include "publish/publisher_options.h"
#include "publish/spool.h"
#include "publish/state_bits.h"
#include "publish/ticket.h"
#include "publish/version_maker.h"

namespace weightwire {

using Ticket = std::shared_ptr<TicketStatus>;  // [guarded]

struct PublisherStatus {
  std::optional<Version> version;  // the newest that is committed
  std::uint64_t pending_versions = 0;
  std::uint64_t pending_bytes = 0;
  std::optional<Error> last_error;   // of what is tried again
  std::optional<Error> fatal_error;  // why nothing is published any more
  std::optional<Version> anchor_in_progress;
  std::optional<AnchorRef> anchor;    // the newest complete one
  std::optional<Error> anchor_error;  // of the last anchor: it was abandoned, or is tried again
  std::vector<std::string> warnings;  // one sentence each
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

// One step of what this process writes of an anchor.
struct ShareJob {
  std::optional<std::uint64_t> call;  // of a version without a delta; none: an anchor by policy
  std::shared_ptr<AnchorShare> share;
  bool discard = false;  // instead: give up what was sent so far, which is an effect too
  // Outcome:
  bool complete = false;
  std::optional<Error> error;
};

using Job = std::variant<DecideJob, PartJob, ShareJob, CommitJob, AssembleJob>;
enum class Lane : std::uint8_t { kDecide, kUpload, kCommit, kAnchor };
inline constexpr std::array kAllLanes = {Lane::kDecide, Lane::kUpload, Lane::kCommit, Lane::kAnchor};

class Publisher {
 public:
  // Finds the newest version and takes up what an earlier process has left. Rank 0 passes its start() to the others,
  // which open with it. kConflict if another writer has taken the place of spooled versions; kMismatch if ranks see
  // different runs; kUnavailable if another process holds the state directory.
  static Result<std::unique_ptr<Publisher>> Open(Run run, PublisherOptions options, const PublisherTools& tools,
                                                 std::string_view start = {});
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  // Of rank 0, for the others.
  [[nodiscard]] std::string start() const { return ToJson(host_->Start()); }
  // The writer in this process's records. REQUIRES: one process, or rank 0.
  [[nodiscard]] const Id& writer() const { return committer_->writer(); }

  // --- the caller's side, in this order ---
  [[nodiscard]] Admission Admit() const;  // [guarded]
  // As VersionMaker::Make. With ranks every call must end in Enqueue or Refuse, or the ranks lose count.
  Result<std::optional<Draft>> Make(const StateBits& bits, std::uint64_t step, const Admission& admission) {
    return maker_->Make(bits, step, admission);
  }
  Ticket Enqueue(Draft draft);                          // [guarded]
  Ticket Refuse(std::uint64_t step, const Error& why);  // [guarded] the call made nothing, and fails on all ranks
  // [guarded] The publisher was full.
  [[nodiscard]] Ticket Skip(std::uint64_t step) const;

  // --- the board of several ranks, all [guarded] ---
  [[nodiscard]] std::vector<std::string> Wanted() const { return board_->Wanted(); }
  void Deliver(const std::string& key, const std::string& text);
  // The caller takes from it what it has done.
  [[nodiscard]] BoardOutbox& outbox() { return outbox_; }
  // The board cannot be reached; and it can again.
  void SetDisconnected(const Error& why);
  void SetConnected();
  [[nodiscard]] std::optional<Error> disconnected() const;  // why, if so

  // --- the work ---
  // Whether this process ever has jobs in the lane.
  [[nodiscard]] bool Uses(Lane lane) const;
  [[nodiscard]] std::optional<Job> Next(Lane lane);  // [guarded]
  void Execute(Job& job) const;
  void Finish(Job job);  // [guarded]
  // [guarded] Looks at the time, and returns true if that changed anything. To be called before Next.
  bool Tick();
  // [guarded] When the lane has something to do, if nothing else happens before.
  [[nodiscard]] std::optional<MonotonicTime> Due(Lane lane) const;
  [[nodiscard]] bool idle() const;               // [guarded] nothing is in flight, anchors included
  [[nodiscard]] PublisherStatus status() const;  // [guarded]
  [[nodiscard]] bool skips_when_full() const { return options_.skip_when_full; }
  [[nodiscard]] bool has_spool() const { return spool_ != nullptr; }

  // --- both sides, with one thread and one process ---
  // Returns nullopt if the publisher is full and the caller must wait.
  Result<std::optional<Ticket>> Publish(const StateBits& bits, std::uint64_t step);
  // Does one job that is due; returns false if none is.
  bool Work();

 private:
  // The upload of a rank's part, or of this process's share of an anchor.
  struct Sending {
    explicit Sending(const BackoffPolicy& retry) : backoff(retry) {}

    AnchorSubject anchor;
    std::shared_ptr<const Shards> shards;
    std::shared_ptr<const BasePin> pin;
    std::shared_ptr<AnchorShare> share;     // none: a part, not begun, or reported to rank 0
    MonotonicTime begun{0};                 // the share, or the upload of the part
    std::optional<MonotonicTime> progress;  // the last one; before it, when sending became possible
    Backoff backoff;
    std::optional<MonotonicTime> due;
    bool busy = false;
  };
  // A call without a verdict.
  struct Entry {
    Entry(std::uint64_t of_call, const BackoffPolicy& retry) : call(of_call), sending(retry) {}

    std::uint64_t call = 0;
    Draft draft;
    Ticket ticket;
    std::uint64_t part_bytes = 0;
    bool in_base = false;  // the base has moved on by it, or what was made after it has been made from it
    bool decided = false;  // of one process: its record is decided, and spooled if there is a spool
    bool sent = false;     // its contribution
    Sending sending;
    std::optional<PartRef> put;
    bool share_complete = false;  // of a version without a delta
  };

  Publisher(Run run, PublisherOptions options, PublisherTools tools);

  Status Start(std::string_view start);
  Status StartCommitter();
  Status StartAsRank(std::string_view start);
  Status LockStateDirectory();
  void Resume(const SpoolEntry& entry);

  // Sends what is ready to the committer, and takes its verdicts. Returns true if anything happened.
  bool Exchange();
  bool SendReady();
  [[nodiscard]] bool IsReady(const Entry& entry) const;
  void Send(Entry& entry);
  void TakeVerdict(const Verdict& verdict);
  void TakeCommitted(Entry entry, const Verdict& verdict);
  // The entries from there on were made from a version that has failed.
  void FailFrom(std::size_t index, const Error& why);
  // All tickets: the publisher has stopped, or cannot hear of its verdicts.
  void FailTickets(const Error& why);
  [[nodiscard]] Entry* Find(std::uint64_t call);

  [[nodiscard]] std::optional<Job> NextUpload();
  [[nodiscard]] std::optional<Job> NextAnchor();
  void FinishPart(PartJob job);
  void FinishShare(const ShareJob& job);
  void FinishTask(const ShareJob& job);
  void FinishDecide(DecideJob job);
  void FinishCommit(CommitJob job);
  void FailedUpload(Entry& entry, const Error& error);
  // Begins a share of the anchor. If one was begun, drops it and gives the anchor a new id.
  void BeginShare(Sending& sending);
  [[nodiscard]] bool MaySend(const Sending& sending) const;
  // Whether the share takes too long, and must be begun again.
  [[nodiscard]] bool IsTooOld(const Sending& sending) const;
  // Returns whether to retry after the error, and sets when.
  [[nodiscard]] bool WillRetry(Sending& sending, const Error& error) const;
  void StartTask(const Entry& entry, const Record& record, const Id& anchor);
  void DropTask();
  [[nodiscard]] std::optional<MonotonicTime> HeartbeatDue() const;
  [[nodiscard]] Version next_version() const { return newest_.has_value() ? newest_->record.version + 1 : 0; }
  [[nodiscard]] std::vector<const Entry*> Live() const;
  [[nodiscard]] MonotonicTime Now() const { return tools_.clock->Monotonic(); }

  const Run run_;
  const PublisherOptions options_;
  const PublisherTools tools_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<Spool> spool_;
  std::unique_ptr<VersionMaker> maker_;
  AnchorOptions anchors_;
  std::optional<Committer> committer_;  // of one process, and of rank 0
  BoardOutbox outbox_;                  // of the two below; guarded
  std::optional<BoardHost> host_;       // of rank 0
  std::unique_ptr<BoardLink> board_;    // to the committer, if this process is one of several ranks

  // [guarded]
  std::uint64_t next_call_ = 0;
  std::deque<Entry> entries_;  // in order
  std::uint64_t entry_bytes_ = 0;
  std::optional<KnownRecord> newest_;     // committed
  std::optional<Version> newest_serial_;  // the base copy's number of it
  Id next_anchor_;
  bool whole_next_ = false;
  std::uint64_t epoch_ = 0;
  bool recovering_ = false;  // of ranks: the last call failed
  std::optional<Error> stopped_;
  std::optional<Error> last_error_;
  std::optional<Sending> task_;                        // an anchor by policy
  std::vector<std::shared_ptr<AnchorShare>> dropped_;  // to be discarded by a job
  std::vector<std::string> warnings_;
};

}  // namespace weightwire
