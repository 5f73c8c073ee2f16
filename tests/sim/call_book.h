// What the ranks of one generation (sim/rank_machine.h) are to publish by each call, and what came of it: by the
// verdicts on their board, the records in the bucket and the ranks' tickets. These must not contradict each other.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "log/id.h"
#include "publish/board_messages.h"
#include "publish/ticket.h"
#include "sim/oracle.h"
#include "sim/world.h"

namespace weightwire::sim {

class CallBook {
 public:
  // `first` is what call 0 publishes. World and oracle must outlive it.
  CallBook(World& world, Oracle& oracle, const Weights& first, std::uint64_t first_step);

  struct Call {
    std::uint64_t step = 0;  // ascending; calls of the same step publish the same
    std::shared_ptr<const Weights> weights;
    Sha256Digest state{};
  };
  // The same for all ranks. Training goes on as far as somebody asks.
  const Call& At(std::uint64_t call);
  // Calls that somebody has asked for; at least one.
  [[nodiscard]] std::uint64_t size() const { return calls_.size(); }

  // Of this generation.
  [[nodiscard]] std::size_t version_count() const { return versions_.size(); }

  // Who its records say has written them.
  void SetWriter(const Id& writer) { writer_ = writer; }
  void OnVersion(const Record& record);
  void OnPut(const std::string& key, const std::string& text);
  // `in_touch`: at no time since the call was the rank out of touch.
  void CheckTicket(const std::string& who, std::uint64_t call, const TicketStatus& ticket, bool in_touch);

 private:
  void OnVerdict(std::uint64_t call, const Verdict& verdict);
  [[nodiscard]] const Verdict* VerdictOf(std::uint64_t call) const;

  World& world_;
  Oracle& oracle_;
  std::deque<Call> calls_;
  std::optional<Id> writer_;
  std::map<std::uint64_t, Version> versions_;  // of the records that this generation has put, by call
  std::map<std::uint64_t, Verdict> verdicts_;
};

}  // namespace weightwire::sim
