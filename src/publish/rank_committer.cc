#include "publish/rank_committer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "codec/digest/state.h"
#include "log/fields.h"
#include "log/run_manifest.h"
#include "publish/anchor_policy.h"
#include "publish/piece_writer.h"
#include "publish/record_commit.h"
#include "publish/retry_pause.h"
#include "publish/writer_start.h"

namespace weightwire {
namespace {

// So many verdicts are kept for a rank that has not seen them.
constexpr std::size_t kMostTold = 256;
// So many ends of anchors are. A rank that comes later has been told of the next anchor, and writes that.
constexpr std::size_t kMostEnded = 2;
// An anchor is all of the model: one that failed is not begun again at once.
constexpr MonotonicTime kAnchorPause = std::chrono::minutes(1);
constexpr int kMostAnchorDoublings = 6;

// The ranks learn of it in time for their own deadline.
MonotonicTime DecidingTime(const CommitterOptions& options) { return options.deadline / 10 * 8; }

Error Disagree(std::uint64_t rank, const std::string& what) {
  return {ErrorCode::kMismatch, fmt::format("rank {} and rank 0 disagree about {}", rank, what)};
}

// Since when a rank that has not reported has been silent: of all these the one who has been so for the longest.
template <typename Report>
std::optional<MonotonicTime> EarliestSilence(const std::vector<std::optional<Report>>& reports,
                                             const std::vector<MonotonicTime>& heard) {
  std::optional<MonotonicTime> earliest;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (!reports[rank].has_value()) earliest = std::min(earliest.value_or(heard[rank]), heard[rank]);
  }
  return earliest;
}

// The digests of whole tensors, from those of all ranks' shards.
std::vector<Digest> AddUp(const Layout& layout, const std::vector<std::shared_ptr<const Shards>>& shards,
                          const std::vector<const std::vector<Digest>*>& digests) {
  std::vector<Digest> sums(layout.size());
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    for (std::size_t i = 0; i < shards[rank]->size(); ++i) sums[shards[rank]->all()[i].tensor] += (*digests[rank])[i];
  }
  return sums;
}

}  // namespace

RankCommitter::RankCommitter(Run run, CommitterOptions options, Random& random, const Clock& clock,
                             std::optional<KnownRecord> newest, std::optional<KnownAnchor> newest_anchor)
    : run_(std::move(run)),
      options_(std::move(options)),
      random_(random),
      clock_(clock),
      writer_(NewId(random)),
      newest_(std::move(newest)),
      newest_anchor_(std::move(newest_anchor)),
      next_anchor_(NewId(random)),
      reports_(options_.ranks),
      alive_(options_.ranks) {}

GroupStart RankCommitter::Start() const {
  GroupStart start;
  start.run = run_.id();
  start.next_anchor = next_anchor_;
  if (newest_.has_value()) {
    start.newest = newest_->record.version;
    start.record_hash = newest_->hash;
  }
  return start;
}

// --- the board ---

std::vector<std::string> RankCommitter::Wanted() const {
  std::vector<std::string> keys;
  for (const auto& [call, told] : told_) {
    for (std::uint64_t rank = 0; rank < options_.ranks; ++rank) {
      if (!told.seen[rank]) keys.push_back(SeenKey(call, rank));
    }
  }
  if (!stopped_ && !job_.has_value()) {
    for (std::uint64_t rank = 0; rank < options_.ranks; ++rank) {
      if (reports_[rank].has_value()) continue;
      keys.push_back(ReportKey(call_, rank));
      keys.push_back(AliveKey(fmt::to_string(call_), rank, alive_[rank]));
    }
  }
  if (anchor_.has_value() && !anchor_->assembled.has_value()) {
    for (std::uint64_t rank = 0; rank < options_.ranks; ++rank) {
      if (anchor_->pieces[rank].has_value()) continue;
      keys.push_back(PieceKey(anchor_->name.id, rank));
      keys.push_back(AliveKey(ToHex(anchor_->name.id), rank, anchor_->alive[rank]));
    }
  }
  return keys;
}

void RankCommitter::Deliver(const std::string& key, const std::string& text, MonotonicTime now) {
  for (std::uint64_t rank = 0; rank < options_.ranks; ++rank) {
    if (key == ReportKey(call_, rank) && !job_.has_value() && !reports_[rank].has_value()) {
      auto report = ParseRankReport(text);
      if (!report.ok()) return Fail(report.error().In(fmt::format("the report of rank {}", rank)), false, now);
      reports_[rank] = std::move(report).value();
      Heard(rank, now);
      if (reports_[rank]->error.has_value()) {
        return Fail(reports_[rank]->error->In(fmt::format("rank {}", rank)), reports_[rank]->needs_rebase, now);
      }
      if (std::ranges::all_of(reports_, [](const auto& one) { return one.has_value(); })) Decide(now);
      return;
    }
    if (key == AliveKey(fmt::to_string(call_), rank, alive_[rank]) && !job_.has_value()) {
      ++alive_[rank];
      Heard(rank, now);
      TellAlive();
      return;
    }
    if (anchor_.has_value() && key == AliveKey(ToHex(anchor_->name.id), rank, anchor_->alive[rank])) {
      ++anchor_->alive[rank];
      anchor_->heard[rank] = now;
      return;
    }
    if (anchor_.has_value() && key == PieceKey(anchor_->name.id, rank) && !anchor_->pieces[rank].has_value()) {
      auto report = ParsePieceReport(text);
      if (report.ok() && !report.value().error.has_value()) {
        anchor_->pieces[rank] = std::move(report).value();
        return;
      }
      GiveUpAnchor((report.ok() ? *report.value().error : report.error()).In(fmt::format("rank {}", rank)), now);
      return;
    }
    for (auto& [call, told] : told_) {
      if (key != SeenKey(call, rank)) continue;
      told.seen[rank] = true;
      if (!std::ranges::all_of(told.seen, [](bool seen) { return seen; })) return;
      unneeded_.insert(unneeded_.end(), told.keys.begin(), told.keys.end());
      told_.erase(call);
      return;
    }
  }
}

// --- deciding ---

void RankCommitter::Heard(std::uint64_t rank, MonotonicTime now) {
  if (!begun_.has_value()) {
    begun_ = now;
    heard_.assign(options_.ranks, now);
  }
  heard_[rank] = now;
}

void RankCommitter::TellAlive() {
  outgoing_.push_back({AliveKey(fmt::to_string(call_), std::nullopt, alive_told_++), "1"});
}

void RankCommitter::Fail(const Error& error, bool rebase, MonotonicTime now) {
  Verdict verdict;
  verdict.outcome = Verdict::Outcome::kFailed;
  verdict.error = error.In(fmt::format("nothing was published by call {} of publish", call_));
  verdict.rebase = rebase;
  Tell(std::move(verdict), now);
}

void RankCommitter::Tell(Verdict verdict, MonotonicTime now) {
  next_anchor_ = NewId(random_);
  verdict.next_anchor = next_anchor_;
  outgoing_.push_back({VerdictKey(call_), ToJson(verdict)});
  Told told;
  told.seen.resize(options_.ranks);
  told.at = now;
  told.keys.push_back(VerdictKey(call_));
  for (std::uint64_t rank = 0; rank < options_.ranks; ++rank) {
    told.keys.push_back(ReportKey(call_, rank));
    told.keys.push_back(SeenKey(call_, rank));
  }
  for (std::uint64_t i = 0; i < alive_told_; ++i) told.keys.push_back(AliveKey(fmt::to_string(call_), std::nullopt, i));
  told_.emplace(call_, std::move(told));
  layouts_.erase(layouts_.begin(), layouts_.upper_bound(call_));
  ++call_;
  reports_.assign(options_.ranks, std::nullopt);
  alive_.assign(options_.ranks, 0);
  alive_told_ = 0;
  begun_.reset();
  job_.reset();
  maybe_committed_ = false;
  attempts_ = 0;
  due_.reset();
}

void RankCommitter::Decide(MonotonicTime now) {
  auto job = MakeVersion();
  if (!job.ok()) return Fail(job.error(), false, now);
  if (!job.value().has_value()) {
    Verdict verdict;
    verdict.outcome = Verdict::Outcome::kSame;
    Tell(std::move(verdict), now);
    return;
  }
  job_ = std::move(job).value();
  decided_ = now;
  // Whoever reported first has waited for the last, and now waits for the store.
  TellAlive();
}

Result<const RankCommitter::Cover*> RankCommitter::CheckShards(const std::shared_ptr<const Layout>& layout,
                                                               std::vector<std::string> texts) {
  if (cover_.layout != nullptr && *cover_.layout == *layout && cover_.texts == texts) return &cover_;
  Cover cover{layout, std::move(texts), {}};
  for (const std::string& text : cover.texts) {
    WW_TRY(std::shared_ptr<const Shards> shards, ParseShards(text, layout));
    cover.shards.push_back(std::move(shards));
  }
  if (!options_.bugs.commit_without_last_rank) WW_RETURN_IF_ERROR(CheckCover(*layout, cover.shards));
  cover_ = std::move(cover);
  return &cover_;
}

Result<std::optional<CommitJob>> RankCommitter::MakeVersion() {
  const RankReport& first = *reports_[0];
  std::vector<std::string> texts;
  std::vector<const std::vector<Digest>*> before;
  std::vector<const std::vector<Digest>*> after;
  for (std::uint64_t rank = 0; rank < options_.ranks; ++rank) {
    const RankReport& report = *reports_[rank];
    if (report.step != first.step) {
      return Disagree(rank, fmt::format("the step: {} there, {} here", report.step, first.step));
    }
    if (report.layout != first.layout) return Disagree(rank, "the names, types and shapes of the tensors");
    if (report.whole != first.whole) return Disagree(rank, "whether the version before is there");
    texts.push_back(report.shards);
    before.push_back(&report.before);
    after.push_back(&report.after);
  }
  const auto layout = layouts_.find(call_);
  if (layout == layouts_.end() || layout->second->hash() != first.layout) {
    return Error(ErrorCode::kMismatch, "rank 0 has reported another layout than it has");
  }
  WW_TRY(const Cover* cover, CheckShards(layout->second, std::move(texts)));
  for (std::uint64_t rank = 0; rank < options_.ranks; ++rank) {
    const std::size_t count = cover->shards[rank]->size();
    if (after[rank]->size() != count || before[rank]->size() != (first.whole ? 0 : count)) {
      return Error(ErrorCode::kCorrupt, fmt::format("rank {} has not reported a digest for each of its shards", rank));
    }
  }
  if (!first.whole) {
    // Its parts lead from exactly the bits that the version before has.
    if (!newest_.has_value() || newest_->record.layout != first.layout ||
        (!options_.bugs.base_sums_unchecked &&
         StateDigest(*cover->layout, AddUp(*cover->layout, cover->shards, before)) != newest_->record.state)) {
      return Error(ErrorCode::kMismatch,
                   fmt::format("the ranks do not all begin at version {}; publish again",
                               newest_.has_value() ? fmt::to_string(newest_->record.version) : "0"));
    }
  }
  CommitJob job;
  job.call = call_;
  Record& record = job.record;
  record.run = run_.id();
  record.version = newest_.has_value() ? newest_->record.version + 1 : 0;
  record.step = first.step;
  record.time = TimeText(std::chrono::duration_cast<std::chrono::seconds>(clock_.Wall().time_since_epoch()).count());
  record.writer = writer_;
  record.layout = first.layout;
  record.state = StateDigest(*cover->layout, AddUp(*cover->layout, cover->shards, after));
  record.chain = record.version;
  record.read = {std::string(kPiecesFeature)};
  std::vector<std::optional<SentPiece>> pieces;
  std::vector<PartRef> parts;
  for (const auto& report : reports_) {
    record.changed += report->changed;
    if (report->part.has_value()) parts.push_back(*report->part);
    pieces.push_back(report->piece);
  }
  if (newest_.has_value()) {
    record.parent = newest_->hash;
    record.delta_bytes = newest_->record.delta_bytes;
  }
  if (!newest_.has_value() || newest_->record.layout != record.layout) job.new_layout = cover->layout;
  if (first.whole) {
    WW_TRY(job.assembled, Assemble({record.version, next_anchor_}, *cover, record.state, record.delta_bytes, pieces));
    return std::optional(std::move(job));
  }
  if (parts.empty() && record.step == newest_->record.step) return std::optional<CommitJob>();
  for (const PartRef& part : parts) record.delta_bytes += part.size_bytes;
  record.delta = std::move(parts);
  record.chain = newest_->record.chain;
  if (newest_anchor_.has_value()) record.anchor = newest_anchor_->Ref();
  // What no reader takes must not become a version: nothing could come after it.
  if (const auto readable = ParseRecord(ToJson(record)); !readable.ok()) return readable.error();
  return std::optional(std::move(job));
}

Result<AssembledAnchor> RankCommitter::Assemble(const AnchorName& name, const Cover& cover, const Sha256Digest& state,
                                                std::uint64_t delta_bytes,
                                                const std::vector<std::optional<SentPiece>>& pieces) const {
  WW_TRY(const AssembledPlan plan, PlanAssembled(*cover.layout, options_.anchors.files));
  AssembledAnchor assembled;
  AnchorManifest& manifest = assembled.manifest;
  manifest.run = run_.id();
  manifest.name = name;
  manifest.layout = cover.layout->hash();
  manifest.state = state;
  manifest.delta_bytes = delta_bytes;
  manifest.assembled = plan.files;
  if (plan.plan.size() > 1) assembled.index = IndexText(plan.plan);
  for (std::uint64_t rank = 0; rank < options_.ranks; ++rank) {
    std::vector<Place> places = PiecePlaces(rank, *cover.shards[rank], plan);
    std::uint64_t bytes = 0;
    for (const Place& place : places) bytes += place.rows * place.row_bytes;
    if (bytes != (pieces[rank].has_value() ? pieces[rank]->size_bytes : 0)) {
      return Error(ErrorCode::kCorrupt, fmt::format("the piece of rank {} is not of the size of its shards", rank));
    }
    if (pieces[rank].has_value()) manifest.files.push_back({PieceName(rank), bytes, pieces[rank]->hash, places});
  }
  // What no reader takes must not be written: the version could never be loaded.
  if (const auto readable = ParseAnchorManifest(ToJson(manifest)); !readable.ok()) {
    return readable.error().In(fmt::format(
        "the list of the pieces of {} ranks, with {} tensors, is more than readers take; publish from fewer ranks",
        options_.ranks, cover.layout->size()));
  }
  return assembled;
}

// --- the work ---

bool RankCommitter::Tick(MonotonicTime now) {
  bool changed = false;
  const auto silent = [&](const auto& reports, const std::vector<MonotonicTime>& heard, MonotonicTime patience) {
    std::string ranks;
    for (std::uint64_t rank = 0; rank < options_.ranks; ++rank) {
      if (reports[rank].has_value() || now - heard[rank] <= patience) continue;
      ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
    }
    return Error(ErrorCode::kUnavailable,
                 fmt::format("nothing was heard of rank {} for {} s", ranks,
                             std::chrono::duration_cast<std::chrono::seconds>(patience).count()));
  };
  if (const auto time_out = CallTimesOut(); time_out.has_value() && now >= *time_out) {
    Fail(job_.has_value() ? *last_error_ : silent(reports_, heard_, DecidingTime(options_)), false, now);
    changed = true;
  }
  if (const auto time_out = AnchorTimesOut(); time_out.has_value() && now >= *time_out) {
    GiveUpAnchor(silent(anchor_->pieces, anchor_->heard, options_.deadline)
                     .In(fmt::format("cannot write an anchor of version {}", anchor_->name.version)),
                 now);
    changed = true;
  }
  for (auto& [call, told] : told_) {
    if (told.late || now - told.at <= options_.deadline) continue;
    told.late = true;
    changed = true;
  }
  while (told_.size() > kMostTold) {
    const std::vector<std::string>& keys = told_.begin()->second.keys;
    unneeded_.insert(unneeded_.end(), keys.begin(), keys.end());
    told_.erase(told_.begin());
  }
  return changed;
}

std::optional<MonotonicTime> RankCommitter::CallTimesOut() const {
  const MonotonicTime patience = DecidingTime(options_) + std::chrono::milliseconds(1);
  if (job_.has_value()) {
    // Once a record may be there, only the store can say whether it is.
    const bool sent = maybe_committed_ && !options_.bugs.deadline_fails_sent_record;
    if (job_busy_ || sent || !last_error_.has_value()) return std::nullopt;
    return decided_ + patience;
  }
  if (!begun_.has_value()) return std::nullopt;
  const auto silence = EarliestSilence(reports_, heard_);
  return silence.has_value() ? std::optional(*silence + patience) : std::nullopt;
}

std::optional<MonotonicTime> RankCommitter::AnchorTimesOut() const {
  if (!anchor_.has_value()) return std::nullopt;
  const auto silence = EarliestSilence(anchor_->pieces, anchor_->heard);
  return silence.has_value() ? std::optional(*silence + options_.deadline + std::chrono::milliseconds(1))
                             : std::nullopt;
}

std::optional<MonotonicTime> RankCommitter::TickDue() const {
  std::optional<MonotonicTime> due = Sooner(CallTimesOut(), AnchorTimesOut());
  for (const auto& [call, told] : told_) {
    if (!told.late) due = Sooner(due, told.at + options_.deadline + std::chrono::milliseconds(1));
  }
  return due;
}

std::optional<CommitJob> RankCommitter::NextCommit(MonotonicTime now) {
  if (!job_.has_value() || job_busy_ || (due_.has_value() && *due_ > now)) return std::nullopt;
  due_.reset();
  job_busy_ = true;
  return job_;
}

void RankCommitter::Finish(CommitJob job, MonotonicTime now) {
  job_busy_ = false;
  WW_CHECK(job_.has_value() && job_->call == job.call);
  switch (job.outcome) {
    case UploadJob::Outcome::kCommitted: {
      last_error_.reset();
      if (job.anchor.has_value()) {
        newest_anchor_ = job.anchor;
        // One of a version before it is of little use now.
        if (anchor_.has_value() && !anchor_->busy) EndAnchor();
      }
      newest_ = KnownRecord{job.record, Sha256Of(BytesOf(job.record_json))};
      Verdict verdict;
      verdict.outcome = Verdict::Outcome::kCommitted;
      verdict.record_json = job.record_json;
      if (job.record.delta.has_value() && AnchorIsDue(job.record, cover_.layout->total_bytes(), now)) {
        StartAnchor(job.record, now);
        verdict.anchor = anchor_->name.id;
      }
      Tell(std::move(verdict), now);
      return;
    }
    case UploadJob::Outcome::kStopped: {
      stopped_ = true;
      Verdict verdict;
      verdict.outcome = Verdict::Outcome::kStopped;
      verdict.error = job.error;
      Tell(std::move(verdict), now);
      return;
    }
    default:
      last_error_ = job.error;
      maybe_committed_ = maybe_committed_ || (job.record_sent && job.error->code() == ErrorCode::kUnknownOutcome);
      if (!maybe_committed_ && !MayMend(*job.error)) return Fail(*job.error, false, now);
      if (!maybe_committed_) TellAlive();
      due_ = now + RetryPause(attempts_++);
      job_ = std::move(job);
  }
}

void RankCommitter::StartAnchor(const Record& record, MonotonicTime now) {
  anchor_ = Anchor{};
  anchor_->name = {record.version, NewId(random_)};
  anchor_->layout = cover_.layout;
  anchor_->state = record.state;
  anchor_->delta_bytes = record.delta_bytes;
  anchor_->pieces.resize(options_.ranks);
  anchor_->alive.resize(options_.ranks);
  anchor_->begun = now;
  anchor_->heard.assign(options_.ranks, now);
}

bool RankCommitter::AnchorIsDue(const Record& record, std::uint64_t model_bytes, MonotonicTime now) const {
  if (anchor_.has_value() || now < no_anchor_before_) return false;
  const AnchorPolicy policy{options_.anchor_every, options_.anchor_percent};
  return IsAnchorDue(policy, newest_anchor_, record.version, record.delta_bytes, model_bytes);
}

std::optional<CompleteJob> RankCommitter::NextComplete(MonotonicTime now) {
  if (!anchor_.has_value() || anchor_->busy || (anchor_->due.has_value() && *anchor_->due > now)) return std::nullopt;
  if (!std::ranges::all_of(anchor_->pieces, [](const auto& piece) { return piece.has_value(); })) return std::nullopt;
  if (now - anchor_->begun > options_.anchor_age) {
    // gc takes what belongs to no anchor for long.
    GiveUpAnchor({ErrorCode::kUnavailable,
                  fmt::format("the anchor of version {} could not be completed in time", anchor_->name.version)},
                 now);
    return std::nullopt;
  }
  if (!anchor_->assembled.has_value()) {
    const auto assemble = [&]() -> Result<AssembledAnchor> {
      Cover cover{anchor_->layout, {}, {}};
      std::vector<const std::vector<Digest>*> digests;
      std::vector<std::optional<SentPiece>> pieces;
      for (const auto& piece : anchor_->pieces) {
        WW_TRY(std::shared_ptr<const Shards> shards, ParseShards(piece->shards, cover.layout));
        if (shards->size() != piece->digests.size()) {
          return Error(ErrorCode::kCorrupt, "a rank has not reported a digest for each of its shards");
        }
        cover.shards.push_back(std::move(shards));
        digests.push_back(&piece->digests);
        pieces.push_back(piece->piece);
      }
      if (StateDigest(*cover.layout, AddUp(*cover.layout, cover.shards, digests)) != anchor_->state) {
        return Error(ErrorCode::kMismatch, "the pieces that the ranks wrote are not those of the version");
      }
      return Assemble(anchor_->name, cover, anchor_->state, anchor_->delta_bytes, pieces);
    };
    auto assembled = assemble();
    if (!assembled.ok()) {
      GiveUpAnchor(assembled.error(), now);
      return std::nullopt;
    }
    anchor_->assembled = std::move(assembled).value();
  }
  anchor_->due.reset();
  anchor_->busy = true;
  return CompleteJob{*anchor_->assembled, {}, {}};
}

void RankCommitter::Finish(CompleteJob job, MonotonicTime now) {
  WW_CHECK(anchor_.has_value() && anchor_->busy);
  anchor_->busy = false;
  if (job.anchor.has_value()) {
    // A version without a delta may have come meanwhile.
    const bool newer =
        !newest_anchor_.has_value() || newest_anchor_->manifest.name.version < job.anchor->manifest.name.version;
    if (newer) newest_anchor_ = std::move(job.anchor);
    anchor_error_.reset();
    anchors_given_up_ = 0;
    EndAnchor();
    return;
  }
  if (!MayMend(*job.error)) return GiveUpAnchor(*job.error, now);
  anchor_error_ = job.error;
  anchor_->due = now + RetryPause(anchor_->attempts++);
}

void RankCommitter::GiveUpAnchor(const Error& why, MonotonicTime now) {
  anchor_error_ = why;
  no_anchor_before_ = now + kAnchorPause * (1 << std::min(anchors_given_up_++, kMostAnchorDoublings));
  EndAnchor();
}

void RankCommitter::EndAnchor() {
  outgoing_.push_back({EndedKey(anchor_->name.id), "1"});
  ended_.push_back(anchor_->name.id);
  if (ended_.size() > kMostEnded) {
    unneeded_.push_back(EndedKey(ended_.front()));
    ended_.erase(ended_.begin());
  }
  anchor_.reset();
}

Result<KnownAnchor> RankCommitter::PutAssembled(const AssembledAnchor& assembled) const {
  AnchorManifest manifest = assembled.manifest;
  const auto put = [&](const std::string& name, std::span<const std::uint8_t> bytes) -> Status {
    WW_RETURN_IF_ERROR(run_.store().Put(AnchorFolder(manifest.name) + name, bytes));
    manifest.files.push_back({name, bytes.size(), ObjectHash(bytes)});
    return Ok();
  };
  if (!assembled.index.empty()) WW_RETURN_IF_ERROR(put(kIndexFileName, BytesOf(assembled.index)));
  for (const CarriedFile& file : options_.anchors.carried) {
    WW_TRY(const std::vector<std::uint8_t> bytes, options_.anchors.file_system->Read(file.path, kMaxPutBytes));
    WW_RETURN_IF_ERROR(put(file.name, bytes));
  }
  const std::string text = ToJson(manifest);
  WW_RETURN_IF_ERROR(run_.store().Put(ManifestKey(manifest.name), BytesOf(text)));
  return KnownAnchor{std::move(manifest), Sha256Of(BytesOf(text))};
}

void RankCommitter::Execute(CommitJob& job) const {
  const Version version = job.record.version;
  const auto try_it = [&]() -> Result<CommitOutcome> {
    if (job.new_layout != nullptr) WW_RETURN_IF_ERROR(run_.PutLayout(*job.new_layout));
    if (job.assembled.has_value() && !job.anchor.has_value()) {
      WW_TRY(job.anchor, PutAssembled(*job.assembled));
      job.record.anchor = job.anchor->Ref();
    }
    if (job.record_json.empty()) job.record_json = ToJson(job.record);
    job.record_sent = true;
    return CommitRecord(run_, version, job.record_json);
  };
  const auto outcome = try_it();
  job.error.reset();
  if (!outcome.ok() && !(options_.bugs.verdict_before_record && !job.record_json.empty())) {
    job.outcome = UploadJob::Outcome::kError;
    job.error = outcome.error().In(fmt::format("cannot publish version {}", version));
  } else if (outcome.ok() && outcome.value() == CommitOutcome::kConflict) {
    job.outcome = UploadJob::Outcome::kStopped;
    job.error = AnotherWriterWon(run_, version, /*spooled=*/false);
  } else {
    job.outcome = UploadJob::Outcome::kCommitted;
  }
}

void RankCommitter::Execute(CompleteJob& job) const {
  auto anchor = PutAssembled(job.assembled);
  if (anchor.ok()) {
    job.anchor = std::move(anchor).value();
  } else {
    job.error =
        anchor.error().In(fmt::format("cannot complete the anchor of version {}", job.assembled.manifest.name.version));
  }
}

bool RankCommitter::idle() const {
  return !job_.has_value() && !begun_.has_value() && !anchor_.has_value() &&
         std::ranges::all_of(told_, [](const auto& told) { return told.second.late; });
}

std::optional<Version> RankCommitter::anchor_in_work() const {
  return anchor_.has_value() ? std::optional(anchor_->name.version) : std::nullopt;
}

}  // namespace weightwire
