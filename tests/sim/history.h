// One history: a world made from a seed, run with everything going wrong, then in calm, and judged.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "sim/planted.h"

namespace weightwire::sim {

// A rank whose process is killed before one of its effects, counted from 0.
struct RankDeath {
  std::uint64_t rank = 0;
  std::uint64_t effect = 0;
};

struct HistoryOptions {
  std::uint64_t seed = 0;
  Planted planted = {};
  std::optional<RankDeath> death = {};  // of a rank of the first generation
  bool show = false;                    // every line as it happens
};

struct HistoryOutcome {
  std::optional<std::string> violation;
  std::string trace_hash;
  std::uint64_t effects = 0;
  std::uint64_t versions = 0;
  std::map<std::string, std::uint64_t> sights = {};  // World::Saw
};

// Publishers of one process each.
HistoryOutcome RunHistory(const HistoryOptions& options);
// A publisher of several ranks.
HistoryOutcome RunRankHistory(const HistoryOptions& options);

}  // namespace weightwire::sim
