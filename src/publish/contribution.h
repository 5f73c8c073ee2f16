// What one rank contributes to a call of publish, and the committer's verdict on the call. A single process is a group
// of one rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "codec/digest/digest.h"
#include "log/id.h"
#include "log/record.h"

namespace weightwire {

// A rank's piece of an anchor that is in the store. The rank and its shards determine where its bytes belong.
struct SentPiece {
  std::uint64_t size_bytes = 0;
  Sha256Digest hash{};  // object hash
};

// What a call of publish has made of a rank's state, whether or not it is sent yet.
struct RankChange {
  std::optional<Error> error;  // the rank has nothing to contribute: the call fails on all ranks
  bool needs_rebase = false;   // because its base is lost, and cannot be rebuilt from the bucket
  std::uint64_t step = 0;
  bool whole = false;          // there is no delta: all of the state is sent, in an anchor of its own
  std::vector<Digest> before;  // by shard, of the base; only of a delta
  std::vector<Digest> after;   // by shard
  std::uint64_t changed = 0;   // units
};

// If it has an error, all but that, `needs_rebase` and `step` are empty.
struct Contribution : RankChange {
  Sha256Digest layout{};           // of the whole state
  std::string shards;              // ToText(Shards); empty for a group of one, which has the whole state
  std::optional<PartRef> part;     // if anything changed
  std::optional<SentPiece> piece;  // of an anchor in pieces; none if the rank has no shard
};

struct Verdict {
  enum class Outcome : std::uint8_t { kCommitted, kSame, kFailed, kStopped };
  std::uint64_t call = 0;
  Outcome outcome = Outcome::kFailed;
  std::optional<Error> error;  // of the last two
  bool rebase = false;         // the next call makes a version without a delta
  std::string record_json;     // of the version, if it is committed
  std::optional<Id> anchor;    // an anchor of this version is due: each rank writes its share of it
  Id next_anchor;              // the id of the next version's own anchor, if it has no delta
};

}  // namespace weightwire
