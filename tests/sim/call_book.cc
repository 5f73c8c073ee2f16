#include "sim/call_book.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

namespace weightwire::sim {
namespace {

// One in so many calls publishes the same step once more.
constexpr std::uint64_t kSaysItAgain = 15;

constexpr std::string_view kVerdictPrefix = "verdict/";

bool IsFailure(const Verdict& verdict) {
  return verdict.outcome == Verdict::Outcome::kFailed || verdict.outcome == Verdict::Outcome::kStopped;
}

}  // namespace

CallBook::CallBook(World& world, Oracle& oracle, const Weights& first, std::uint64_t first_step)
    : world_(world), oracle_(oracle) {
  calls_.push_back({first_step, std::make_shared<const Weights>(first), oracle_.MayBePublished(first)});
}

const CallBook::Call& CallBook::At(std::uint64_t call) {
  while (calls_.size() <= call) {
    if (world_.random().Below(kSaysItAgain) == 0) {
      calls_.push_back(calls_.back());
      continue;
    }
    Weights weights = *calls_.back().weights;
    oracle_.Train(weights);
    const Sha256Digest state = oracle_.MayBePublished(weights);
    calls_.push_back({calls_.back().step + 1 + world_.random().Below(2),
                      std::make_shared<const Weights>(std::move(weights)), state});
  }
  return calls_[call];
}

const Verdict* CallBook::VerdictOf(std::uint64_t call) const {
  if (const auto at = verdicts_.find(call); at != verdicts_.end()) return &at->second;
  // After the last one that there will ever be, it is that of all calls.
  if (verdicts_.empty() || verdicts_.rbegin()->second.outcome != Verdict::Outcome::kStopped) return nullptr;
  return call > verdicts_.rbegin()->first ? &verdicts_.rbegin()->second : nullptr;
}

void CallBook::OnVersion(const Record& record) {
  if (writer_ != record.writer) return;
  if (!record.delta.has_value()) world_.Saw(record.version == 0 ? "a first version" : "a rebase");
  auto at = std::ranges::find(calls_, record.step, &Call::step);
  // Of equal calls it is the one that is being decided.
  while (at != calls_.end() && at + 1 != calls_.end() && (at + 1)->step == record.step &&
         VerdictOf(static_cast<std::uint64_t>(at - calls_.begin())) != nullptr) {
    ++at;
  }
  if (at == calls_.end() || at->state != record.state) {
    return world_.Violation(
        fmt::format("version {} is not what the ranks were to publish at step {}", record.version, record.step));
  }
  const auto call = static_cast<std::uint64_t>(at - calls_.begin());
  if (!versions_.emplace(call, record.version).second) {
    world_.Violation(fmt::format("call {} has made two versions, {} and {}", call, versions_[call], record.version));
  }
  const Verdict* verdict = VerdictOf(call);
  if (verdict != nullptr && verdict->outcome != Verdict::Outcome::kCommitted) {
    world_.Violation(
        fmt::format("version {} is of call {}, of which it was told that nothing was published", record.version, call));
  }
}

void CallBook::OnPut(const std::string& key, const std::string& text) {
  if (!key.starts_with(kVerdictPrefix)) return;
  const std::uint64_t call = std::strtoull(key.c_str() + kVerdictPrefix.size(), nullptr, 10);
  auto verdict = ParseVerdict(text);
  if (!verdict.ok()) return world_.Violation(fmt::format("{}: {}", key, verdict.error().message()));
  constexpr std::array<const char*, 4> kOutcomes = {"committed", "same", "failed", "stopped"};
  world_.Saw(fmt::format("verdict: {}", kOutcomes[static_cast<std::size_t>(verdict.value().outcome)]));
  if (verdict.value().anchor.has_value()) world_.Saw("verdict: an anchor is due");
  if (verdict.value().rebase) world_.Saw("verdict: a rebase is due");
  OnVerdict(call, verdict.value());
  verdicts_.emplace(call, std::move(verdict).value());
}

void CallBook::OnVerdict(std::uint64_t call, const Verdict& verdict) {
  if (verdict.outcome == Verdict::Outcome::kCommitted) {
    const auto record = ParseRecord(verdict.record_json);
    if (!record.ok() || !oracle_.HasRecord(record.value().version, verdict.record_json)) {
      return world_.Violation(fmt::format("call {} is told to be committed, but its record is not there", call));
    }
    const auto made = versions_.find(call);
    if (made == versions_.end() || made->second != record.value().version) {
      world_.Violation(fmt::format("call {} is told to be version {}, which it is not", call, record.value().version));
    }
  } else if (versions_.contains(call)) {
    world_.Violation(
        fmt::format("call {} is told to have published nothing, but it is version {}", call, versions_[call]));
  }
  if (IsFailure(verdict) && !verdict.error.has_value()) {
    world_.Violation(fmt::format("call {} is told to have failed, but not why", call));
  }
}

void CallBook::CheckTicket(const std::string& who, std::uint64_t call, const TicketStatus& ticket, bool in_touch) {
  const auto wrong = [&](std::string_view what) {
    world_.Violation(
        fmt::format("the ticket of {} for call {} says '{}', but {}", who, call, NameOf(ticket.stage), what));
  };
  const Verdict* verdict = VerdictOf(call);
  switch (ticket.stage) {
    case TicketStage::kCommitted:
      if (!versions_.contains(call) || versions_[call] != ticket.version) return wrong("it is no such version");
      if (verdict == nullptr || verdict->outcome != Verdict::Outcome::kCommitted) return wrong("rank 0 did not say so");
      return;
    case TicketStage::kAlreadyPublished: {
      if (verdict == nullptr || verdict->outcome != Verdict::Outcome::kSame) return wrong("rank 0 did not say so");
      if (!ticket.version.has_value() || *ticket.version >= oracle_.version_count()) return wrong("of no version");
      const Record& record = oracle_.record(*ticket.version);
      if (record.state != At(call).state || record.step != At(call).step) return wrong("that version is another state");
      return;
    }
    case TicketStage::kFailed: {
      const bool told = verdict != nullptr && IsFailure(*verdict);
      if (!told && in_touch) return wrong("rank 0 did not say so, and the rank was never out of touch");
      if (!ticket.error.has_value()) return wrong("not why");
      return;
    }
    default:
      return wrong("that is no end");
  }
}

}  // namespace weightwire::sim
