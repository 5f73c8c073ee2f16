// The pipeline: which versions are on their way to the bucket, and what is due next. Pure state; no effect happens
// here.
//
// Versions go through it in order. Each waits until its parent's record is decided, then its own is decided and
// spooled, its parts are uploaded, and its record is committed:
//
//   queued ──spool job──▶ spooled ──upload job──▶ committed
//
// A version without a delta (version 0, a rebase) needs its anchor first, and its record cannot be decided before that.
// Other anchors, by policy, are planned when a version is queued and written once it is committed.
//
// Whoever runs it asks for the next job of a lane, executes it (jobs.h) without holding any lock, and hands it back.
// There is at most one job of a lane at a time. Lanes do not wait for each other, so an anchor never delays a delta.
//
// What fails how:
//   - spooling: the version and those after it fail, and the base must be rolled back before the next publish;
//   - uploading: tried again for ever, with back-off; the ticket shows the error;
//   - another writer's record: the publisher stops for good.
//
// Thread safety: one thread at a time (the runner guards it).
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "codec/format/delta_bytes.h"
#include "log/record.h"
#include "log/run.h"
#include "publish/anchor_writer.h"
#include "publish/base_copy.h"
#include "publish/ticket.h"
#include "tensor/layout.h"

namespace weightwire {

using Ticket = std::shared_ptr<TicketStatus>;  // guarded as the pipeline is

// The earlier of two times, either of which may never come.
[[nodiscard]] inline std::optional<MonotonicTime> Sooner(std::optional<MonotonicTime> a,
                                                         std::optional<MonotonicTime> b) {
  return a.has_value() && b.has_value() ? std::min(*a, *b) : (a.has_value() ? a : b);
}

struct PipelineOptions {
  // The spool is full when it has as many versions, or bytes of parts, or more.
  std::uint64_t max_versions = 16;
  std::uint64_t max_bytes = std::uint64_t{4} << 30;
  // An anchor is due so many versions after the last one, or when the deltas since add up to this share of the model.
  // 0: never by this rule.
  std::uint64_t anchor_every = 100;
  std::uint64_t anchor_percent = 100;
  // An anchor that takes longer than this is begun anew under another name, for gc takes it for given up after its
  // minimum age.
  MonotonicTime anchor_age = std::chrono::hours(12);
  // Between attempts: doubled each time from the first to the last; what a person must mend is tried at the slow pace.
  MonotonicTime first_pause = std::chrono::seconds(1);
  MonotonicTime last_pause = std::chrono::seconds(60);
  MonotonicTime slow_pause = std::chrono::seconds(300);
};

// A version that was made: the base is there already.
struct Draft {
  Version version = 0;
  std::uint64_t step = 0;
  std::string time;
  std::shared_ptr<const Layout> layout;
  Sha256Digest state{};
  bool has_delta = true;                   // false: version 0 or a rebase
  std::shared_ptr<const DeltaBytes> part;  // none if there is nothing to send
  std::uint64_t changed = 0;
  std::shared_ptr<const BasePin> pin;  // of this version
  std::string note;                    // what a person should know, if anything
};

// Decides a record and spools it.
struct SpoolJob {
  Record record;                           // all but what the part decides
  std::shared_ptr<const DeltaBytes> part;  // if any
  std::uint64_t delta_bytes_before = 0;
  std::shared_ptr<const Layout> new_layout;  // if the version before has another
  // Outcome:
  Status status;
  std::string record_json;
};

// Puts layout and parts, commits the record, and removes it from the spool.
struct UploadJob {
  KnownRecord known;
  std::string record_json;
  std::shared_ptr<const DeltaBytes> part;    // none: read it from the spool, if the record names one
  std::shared_ptr<const Layout> new_layout;  // to be put
  bool again = false;                        // a former attempt may have got somewhere
  // Outcome:
  enum class Outcome : std::uint8_t { kCommitted, kStopped, kError, kTakenForFailed };
  Outcome outcome = Outcome::kError;
  std::optional<Error> error;
};

// One step of an anchor.
struct AnchorJob {
  std::shared_ptr<AnchorWriter> writer;
  bool give_up = false;  // instead: what was sent so far is dropped, which is an effect too
  // Outcome:
  std::optional<Error> error;
  bool complete = false;
};

using Job = std::variant<SpoolJob, UploadJob, AnchorJob>;

enum class Lane : std::uint8_t { kSpool, kUpload, kAnchor };
inline constexpr std::array kAllLanes = {Lane::kSpool, Lane::kUpload, Lane::kAnchor};

// What stands between a caller and its next version.
struct Admission {
  std::optional<Error> stopped;  // nothing will be published any more
  bool full = false;             // wait, or skip
  Version safe = 0;              // versions up to this one will not be rolled back
  bool empty = false;            // nothing is on its way
  // The last version there is or will be. A base that is further must be rolled back to it: what came after failed.
  std::optional<Version> newest_version;
  std::optional<std::uint64_t> newest_step;
  std::optional<Sha256Digest> newest_state;
  std::optional<Sha256Digest> newest_layout;
  std::optional<KnownRecord> newest_record;  // if it is committed
};

struct PipelineStatus {
  std::optional<Version> committed;
  std::uint64_t versions_waiting = 0;
  std::uint64_t bytes_waiting = 0;
  std::optional<Error> last_error;  // of what is tried again
  std::optional<Error> stopped;
  std::optional<Version> anchor_in_work;
  std::optional<AnchorRef> newest_anchor;
  std::optional<Error> anchor_error;  // of the last anchor: it was given up, or is tried again
};

class Pipeline {
 public:
  // Makes the writer of an anchor of a version from what is pinned.
  using MakeAnchorWriter =
      std::function<std::shared_ptr<AnchorWriter>(Version version, const Sha256Digest& state, std::uint64_t delta_bytes,
                                                  const std::shared_ptr<const BasePin>& pin)>;

  // `newest` is the newest committed version, `anchor` the newest complete anchor known.
  Pipeline(PipelineOptions options, const Id& run, const Id& writer, bool has_spool, std::optional<KnownRecord> newest,
           std::optional<KnownAnchor> anchor, MakeAnchorWriter make_anchor_writer);

  // A version that an earlier process has spooled. REQUIRES: the one after the newest here.
  void Resume(KnownRecord known, std::string record_json, std::shared_ptr<const Layout> layout);

  // --- for the caller's thread ---
  [[nodiscard]] Admission Admit();
  // A version made after Admit. Fails at once if its parent failed meanwhile.
  Ticket Enqueue(Draft draft, MonotonicTime now);

  // --- for whoever does the work ---
  std::optional<Job> Next(Lane lane, MonotonicTime now);
  void Finish(Job job, MonotonicTime now);
  // When the lane should be asked again, if it waits for nothing but time.
  [[nodiscard]] std::optional<MonotonicTime> Due(Lane lane) const;

  [[nodiscard]] bool idle() const { return entries_.empty() && !anchor_.has_value() && dropped_.empty(); }
  [[nodiscard]] PipelineStatus status() const;

  // For tests: undo of a version is kept until it is committed.
  void KeepUntilCommitted() { safe_when_committed_ = true; }

 private:
  struct Entry {
    Draft draft;
    Ticket ticket;
    Sha256Digest layout_hash{};
    std::uint64_t delta_bytes = 0;  // of all parts up to this version
    std::uint64_t part_bytes = 0;
    std::shared_ptr<const Layout> new_layout;
    std::optional<AnchorRef> own_anchor;  // of a version without a delta, once it is complete
    std::optional<KnownRecord> known;     // once it is decided
    std::string record_json;
    bool spooled = false;
    int attempts = 0;
    bool again = false;
    std::optional<MonotonicTime> due;
  };
  // An anchor that is planned or on its way.
  struct Anchor {
    Version version = 0;
    Sha256Digest state{};
    std::uint64_t delta_bytes = 0;
    std::shared_ptr<const BasePin> pin;
    bool required = false;  // the version's record waits for it
    std::shared_ptr<AnchorWriter> writer;
    MonotonicTime begun{0};
    int attempts = 0;
    std::optional<MonotonicTime> due;
  };

  std::optional<Job> NextSpool();
  std::optional<Job> NextUpload(MonotonicTime now);
  std::optional<Job> NextAnchor(MonotonicTime now);
  void FinishSpool(SpoolJob job, MonotonicTime now);
  void FinishUpload(UploadJob job, MonotonicTime now);
  void FinishAnchor(AnchorJob job, MonotonicTime now);
  void Stop(const Error& why, MonotonicTime now);
  void FailFrom(std::size_t index, const Error& why, MonotonicTime now);
  void PlanAnchor(const Entry& entry);
  void DropAnchor();
  [[nodiscard]] std::optional<Version> newest_version() const;
  [[nodiscard]] std::optional<std::uint64_t> newest_step() const;
  // A version that waits for its own anchor, or nullptr.
  [[nodiscard]] Entry* NeedsAnchor();
  [[nodiscard]] Entry* Find(Version version);
  [[nodiscard]] bool AnchorMayStart() const;
  [[nodiscard]] MonotonicTime Pause(const Error& error, int attempts) const;

  const PipelineOptions options_;
  const Id run_;
  const Id writer_;
  const bool has_spool_;
  const MakeAnchorWriter make_anchor_writer_;
  bool safe_when_committed_ = false;

  std::deque<Entry> entries_;  // not yet committed, in order
  std::uint64_t entry_bytes_ = 0;
  std::optional<KnownRecord> committed_;
  std::optional<KnownAnchor> newest_anchor_;
  std::optional<Anchor> anchor_;
  int anchors_given_up_ = 0;      // one after another, because their bits were not to be had any more
  Version no_anchor_before_ = 0;  // none by policy
  std::vector<std::shared_ptr<AnchorWriter>> dropped_;  // to be given up by a job
  bool spool_busy_ = false;
  bool upload_busy_ = false;
  bool anchor_busy_ = false;
  bool failed_since_admit_ = false;
  std::optional<Error> stopped_;
  std::optional<Error> last_error_;
  std::optional<Error> anchor_error_;
};

}  // namespace weightwire
