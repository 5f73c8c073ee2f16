#include "publish/piece_collector.h"

#include <fmt/format.h>

#include "codec/digest/state.h"
#include "publish/sooner.h"

namespace weightwire {

void PieceCollector::Follow(MonotonicTime now) {
  const std::optional<AnchorSubject>& wanted = committer_.anchor_in_work();
  if (anchor_.has_value() && (!wanted.has_value() || anchor_->subject.name != wanted->name)) {
    if (!wanted.has_value() && anchor_->busy) return;  // it is almost complete
    End();
  }
  if (!wanted.has_value() || anchor_.has_value()) return;
  anchor_.emplace(Anchor{*wanted,
                         committer_.cover()->layout,
                         RankWatch(ToHex(wanted->name.id), options_.group->ranks),
                         std::vector<PieceReport>(options_.group->ranks),
                         now,
                         Backoff(options_.retry),
                         {},
                         false});
  anchor_->watch.Begin(now);
}

std::vector<std::string> PieceCollector::Wanted() const {
  std::vector<std::string> keys;
  if (!anchor_.has_value()) return keys;
  for (std::uint64_t rank = 0; rank < options_.group->ranks; ++rank) {
    if (anchor_->watch.HasReported(rank)) continue;
    keys.push_back(PieceKey(anchor_->subject.name.id, rank));
    keys.push_back(anchor_->watch.HeartbeatKey(rank));
  }
  return keys;
}

void PieceCollector::Deliver(const std::string& key, const std::string& text, MonotonicTime now) {
  for (std::uint64_t rank = 0; rank < options_.group->ranks && anchor_.has_value(); ++rank) {
    if (key == anchor_->watch.HeartbeatKey(rank)) return anchor_->watch.CountHeartbeat(rank, now);
    if (key != PieceKey(anchor_->subject.name.id, rank) || anchor_->watch.HasReported(rank)) continue;
    auto report = ParsePieceReport(text);
    const std::optional<Error> error = report.ok() ? report.value().error : report.error();
    if (error.has_value()) return Abandon(error->In(fmt::format("rank {}", rank)));
    anchor_->pieces[rank] = std::move(report).value();
    anchor_->watch.Report(rank, now);
    return;
  }
}

std::optional<AssembleJob> PieceCollector::Next(MonotonicTime now) {
  if (!anchor_.has_value() || anchor_->busy || !anchor_->watch.AllReported()) return std::nullopt;
  if (anchor_->due.has_value() && *anchor_->due > now) return std::nullopt;
  if (now - anchor_->begun > options_.anchor_age) {
    Abandon({ErrorCode::kUnavailable,
             fmt::format("the anchor of version {} could not be completed in time", anchor_->subject.name.version)});
    return std::nullopt;
  }
  anchor_->due.reset();
  anchor_->busy = true;
  return AssembleJob{anchor_->subject, anchor_->layout, anchor_->pieces, {}, {}};
}

void PieceCollector::Execute(AssembleJob& job) const {
  const auto assemble = [&]() -> Result<KnownAnchor> {
    Cover cover{job.layout, {}, {}};
    std::vector<const std::vector<Digest>*> digests;
    std::vector<std::optional<SentPiece>> pieces;
    for (const PieceReport& piece : job.pieces) {
      WW_TRY(std::shared_ptr<const Shards> shards, ParseShards(piece.shards, cover.layout));
      if (shards->size() != piece.digests.size()) {
        return Error(ErrorCode::kCorrupt, "a rank has not reported a digest for each of its shards");
      }
      cover.shards.push_back(std::move(shards));
      digests.push_back(&piece.digests);
      pieces.push_back(piece.piece);
    }
    if (StateDigest(*cover.layout, AddUp(*cover.layout, cover.shards, digests)) != job.subject.state) {
      return Error(ErrorCode::kMismatch, "the pieces that the ranks wrote are not those of the version");
    }
    WW_TRY(const AssembledAnchor assembled, AssembleAnchor(run_, job.subject, cover, pieces, anchors_.files));
    return PutAssembled(run_, assembled, anchors_);
  };
  auto anchor = assemble();
  if (anchor.ok()) {
    job.anchor = std::move(anchor).value();
  } else {
    job.error = anchor.error().In(fmt::format("cannot complete the anchor of version {}", job.subject.name.version));
  }
}

void PieceCollector::Finish(AssembleJob job, MonotonicTime now) {
  const bool ended = !anchor_.has_value() || anchor_->subject.name != job.subject.name;
  if (!ended) anchor_->busy = false;
  if (job.anchor.has_value()) {
    committer_.AnchorCompleted(std::move(*job.anchor));
    if (!ended) End();
    return;
  }
  if (ended) return;
  if (!MaySucceedLater(*job.error)) return Abandon(*job.error);
  committer_.SetAnchorError(*job.error);
  anchor_->due = now + anchor_->backoff.Next();
}

bool PieceCollector::Tick(MonotonicTime now) {
  const auto time_out = TickDue();
  if (!time_out.has_value() || now < *time_out) return false;
  Abandon(anchor_->watch.SilentError(options_.group->deadline, now)
              .In(fmt::format("cannot write an anchor of version {}", anchor_->subject.name.version)));
  return true;
}

std::optional<MonotonicTime> PieceCollector::TickDue() const {
  const auto silent = anchor_.has_value() ? anchor_->watch.SilentSince() : std::nullopt;
  if (!silent.has_value()) return std::nullopt;
  return *silent + options_.group->deadline + std::chrono::milliseconds(1);
}

std::optional<MonotonicTime> PieceCollector::Due() const {
  return Sooner(TickDue(), anchor_.has_value() && !anchor_->busy ? anchor_->due : std::nullopt);
}

void PieceCollector::Abandon(const Error& why) {
  committer_.AnchorAbandoned(why);
  End();
}

void PieceCollector::End() {
  const Id id = anchor_->subject.name.id;
  outbox_.outgoing.push_back({EndedKey(id), "1"});
  ended_.push_back(id);
  if (ended_.size() > kMaxEndedAnchors) {
    outbox_.unneeded.push_back(EndedKey(ended_.front()));
    ended_.erase(ended_.begin());
  }
  anchor_.reset();
}

}  // namespace weightwire
