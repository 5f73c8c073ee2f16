#include "sim/board_forger.h"

#include <cstdio>

namespace weightwire::sim {

std::optional<std::string> BoardForger::Hear(const std::string& key, std::optional<std::string> found) {
  unsigned long long call = 0;
  unsigned long long rank = 0;
  const bool is_report = std::sscanf(key.c_str(), "report/%llu/%llu", &call, &rank) == 2;
  if (fault_ == PublisherFault::kCommitWithoutLastRank) {
    if (is_report && rank == 0 && found.has_value()) {
      first_ = ParseContribution(*found).value();
      first_call_ = call;
    }
    return is_report && rank + 1 == ranks_ && rank != 0 ? ForgeLastRank(call, std::move(found)) : found;
  }
  if (fault_ != PublisherFault::kNoRollBack && fault_ != PublisherFault::kEpochIgnored) return found;
  if (!found.has_value()) return found;
  if (is_report) return ForgeBase(call, rank, *found);
  if (std::sscanf(key.c_str(), "verdict/%llu", &call) == 1 &&
      ParseVerdict(*found).value().outcome == Verdict::Outcome::kCommitted) {
    newest_ = after_[call];
  }
  return found;
}

// Rank 0 hears that the last rank has changed nothing since its previous call.
std::optional<std::string> BoardForger::ForgeLastRank(std::uint64_t call, std::optional<std::string> found) {
  const bool can = first_.has_value() && first_call_ == call && !first_->error.has_value() && !first_->whole &&
                   last_.has_value() && last_->layout == first_->layout;
  if (can) {
    last_->step = first_->step;
    last_->whole = false;
    last_->before = last_->after;
    last_->changed = 0;
    last_->part.reset();
    last_->piece.reset();
    return ToJson(*last_);
  }
  if (found.has_value()) {
    Contribution real = ParseContribution(*found).value();
    last_ = real.error.has_value() ? std::nullopt : std::optional(std::move(real));
  }
  return found;
}

// Every rank is said to begin at the newest version.
std::string BoardForger::ForgeBase(std::uint64_t call, std::uint64_t rank, const std::string& text) {
  Contribution report = ParseContribution(text).value();
  if (report.error.has_value()) return text;
  after_[call][rank] = report.after;
  if (!report.whole && newest_[rank].size() == report.before.size()) report.before = newest_[rank];
  return ToJson(report);
}

}  // namespace weightwire::sim
