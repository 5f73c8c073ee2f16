// The ranks of a job from one start to the next: what they have in common.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "publish/publisher.h"
#include "sim/call_book.h"
#include "sim/history.h"
#include "sim/sim_board.h"

namespace weightwire::sim {

struct Generation {
  std::uint64_t number = 0;
  PublisherOptions options;                      // of all ranks, but for `rank`
  bool retries_store = false;                    // the ranks' stores try again what failed for now
  PublisherFault fault = PublisherFault::kNone;  // planted
  std::optional<RankDeath> death;
  [[nodiscard]] std::uint64_t ranks() const { return options.group->ranks; }
  [[nodiscard]] MonotonicTime deadline() const { return options.group->deadline; }
  std::shared_ptr<Board> board;
  std::shared_ptr<CallBook> book;

  // What collectives would bring, while the ranks start.
  std::optional<std::string> start;  // by rank 0
  std::uint64_t open_ranks = 0;
  bool cannot_start = false;
  [[nodiscard]] bool IsOpen() const { return open_ranks == ranks(); }

  // Calls from this one on are not made.
  std::uint64_t end_call = std::numeric_limits<std::uint64_t>::max();
};

}  // namespace weightwire::sim
