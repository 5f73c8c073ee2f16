#include "publish/rank_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "publish/board_messages.h"
#include "publish/sooner.h"

namespace weightwire {

RankWatch::RankWatch(std::string what, std::uint64_t ranks)
    : what_(std::move(what)), reported_(ranks), heartbeats_(ranks), heard_(ranks) {}

void RankWatch::Begin(MonotonicTime now) {
  begun_ = true;
  std::ranges::fill(heard_, now);
}

void RankWatch::Hear(std::uint64_t rank, MonotonicTime now) {
  if (!begun_) Begin(now);
  heard_[rank] = now;
}

void RankWatch::Report(std::uint64_t rank, MonotonicTime now) {
  reported_[rank] = true;
  Hear(rank, now);
}

void RankWatch::CountHeartbeat(std::uint64_t rank, MonotonicTime now) {
  ++heartbeats_[rank];
  Hear(rank, now);
}

bool RankWatch::AllReported() const {
  return std::ranges::all_of(reported_, [](bool reported) { return reported; });
}

std::string RankWatch::HeartbeatKey(std::uint64_t rank) const { return AliveKey(what_, rank, heartbeats_[rank]); }

std::optional<MonotonicTime> RankWatch::SilentSince() const {
  std::optional<MonotonicTime> since;
  for (std::size_t rank = 0; rank < reported_.size() && begun_; ++rank) {
    if (!reported_[rank]) since = Sooner(since, heard_[rank]);
  }
  return since;
}

Error RankWatch::SilentError(MonotonicTime patience, MonotonicTime now) const {
  std::string ranks;
  for (std::size_t rank = 0; rank < reported_.size(); ++rank) {
    if (reported_[rank] || now - heard_[rank] <= patience) continue;
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  return {ErrorCode::kUnavailable, fmt::format("nothing was heard of rank {} for {} s", ranks,
                                               std::chrono::duration_cast<std::chrono::seconds>(patience).count())};
}

}  // namespace weightwire
