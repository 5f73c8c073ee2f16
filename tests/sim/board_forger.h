// Makes rank 0 hear what no rank has said: bugs of the committer, planted on the board.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "publish/board_messages.h"
#include "sim/planted.h"

namespace weightwire::sim {

class BoardForger {
 public:
  BoardForger(PublisherFault fault, std::uint64_t ranks) : fault_(fault), ranks_(ranks) {}

  // What rank 0 hears when it asks for a key, given what is there.
  std::optional<std::string> Hear(const std::string& key, std::optional<std::string> found);

 private:
  std::optional<std::string> ForgeLastRank(std::uint64_t call, std::optional<std::string> found);
  std::string ForgeBase(std::uint64_t call, std::uint64_t rank, const std::string& text);

  const PublisherFault fault_;
  const std::uint64_t ranks_;
  // kCommitWithoutLastRank: what rank 0 itself has reported for the call, and the last rank for the one before.
  std::optional<Contribution> first_;
  std::uint64_t first_call_ = 0;
  std::optional<Contribution> last_;
  // The others: by call and rank, and of the newest version.
  std::map<std::uint64_t, std::map<std::uint64_t, std::vector<Digest>>> after_;
  std::map<std::uint64_t, std::vector<Digest>> newest_;
};

}  // namespace weightwire::sim
