#include "sim/sim_board.h"

#include <fmt/format.h>

namespace weightwire::sim {
namespace {

// In a thousand requests.
constexpr std::uint64_t kBreaks = 1;
constexpr std::uint64_t kBoardStalls = 3;

}  // namespace

void Board::Put(const std::string& key, const std::string& text, bool again) {
  const auto [before, first] = ever_put_.emplace(key, text);
  texts_[key] = text;
  if (first) {
    if (on_put) on_put(key, text);
  } else if (again && before->second == text) {
    put_again_.insert(key);
  } else {
    world_.Violation(fmt::format("{} is put on the board twice", key));
  }
}

std::optional<std::string> Board::Find(const std::string& key) const {
  const auto at = texts_.find(key);
  return at == texts_.end() ? std::nullopt : std::optional(at->second);
}

bool BoardClient::IsStalled() const {
  // Once nothing goes wrong any more, nobody waits for what went wrong before.
  if (!machine_.world().faults() && !board_->frozen()) return false;
  return stalled_until_.has_value() && *stalled_until_ > machine_.world().clock().Monotonic();
}

void BoardClient::StallFor(MonotonicTime time) {
  stalled_until_ = machine_.world().clock().Monotonic() + time;
  machine_.world().Trace(fmt::format("{} waits for the board", machine_.name()));
}

Result<bool> BoardClient::Send(std::string_view what, const std::string& key) {
  World& world = machine_.world();
  arrived_ = false;
  const auto broken = [&]() -> Result<bool> {
    broken_ = true;
    return Error(ErrorCode::kUnavailable, "the connection is gone");
  };
  if (broken_) return broken();
  if (IsStalled()) return false;
  if (stalled_until_.has_value() && breaks_then_) return broken();
  stalled_until_.reset();
  if (board_->frozen()) {
    breaks_then_ = true;
    StallFor(timeout_);
    return false;
  }
  if (!world.Effect(machine_, what, key)) return broken();
  if (board_->closed()) {
    // The other end says so, or its whole machine is gone and nobody does.
    if (!world.faults() || world.random().Below(2) == 0) return broken();
    breaks_then_ = true;
    StallFor(timeout_);
    return false;
  }
  if (world.Chance(kBreaks)) {
    world.Trace("the connection breaks");
    for_good_ = world.random().Below(2) == 0;
    arrived_ = world.random().Below(2) == 0;
    return broken();
  }
  if (world.Chance(kBoardStalls)) {
    StallFor(timeout_ / 10 * static_cast<MonotonicTime::rep>(1 + world.random().Below(20)));
    return false;
  }
  return true;
}

Status BoardClient::Connect() {
  World& world = machine_.world();
  const Error gone(ErrorCode::kUnavailable, "there is no way to the board");
  if (!world.Effect(machine_, "connects", "the board")) return gone;
  if (for_good_ || board_->closed() || board_->frozen() || world.Chance(500)) return gone;
  broken_ = breaks_then_ = false;
  stalled_until_.reset();
  return Ok();
}

Status BoardClient::Put(const std::string& key, const std::string& text, bool again) {
  const auto sent = Send("says", key);
  if ((sent.ok() && sent.value()) || (!sent.ok() && arrived_)) board_->Put(key, text, again);
  return sent.ok() ? Ok() : sent.error();
}

Result<std::optional<std::string>> BoardClient::Find(const std::string& key) {
  // Asking for what is not there is no effect, and is done very often.
  if (!broken_ && !IsStalled() && !board_->closed() && !board_->frozen() && !stalled_until_.has_value() &&
      !board_->Find(key).has_value()) {
    return std::optional<std::string>();
  }
  WW_TRY(const bool arrives, Send("hears", key));
  return arrives ? board_->Find(key) : std::nullopt;
}

Status BoardClient::Remove(const std::string& key) {
  WW_TRY(const bool arrives, Send("wipes", key));
  if (arrives) board_->Remove(key);
  return Ok();
}

}  // namespace weightwire::sim
