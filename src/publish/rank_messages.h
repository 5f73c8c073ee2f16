// What the ranks of a publisher tell each other, over a board that all of them can read: a map from keys to texts. A
// key is put once. Nothing on it is trusted beyond what it says: a version comes about only by its record.
//
// The n-th call of publish of every rank belongs together, and they are numbered from 0. For each call:
//
//   report/<call>/<rank>   what the rank has uploaded for it, or why it could not
//   verdict/<call>         what came of it, by rank 0
//   seen/<call>/<rank>     the rank has taken note of the verdict
//   alive/<what>/<rank>/<n>  the rank, or rank 0 as the one who decides ("verdict"), is still at the call or the anchor
//   piece/<id>/<rank>      the rank's piece of the anchor <id>, or why there is none
//   ended/<id>             the anchor <id> is complete, or given up: nobody need write a piece of it
//
// Who put a key removes it: report, verdict and seen belong to rank 0, who knows when all have read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "codec/digest/digest.h"
#include "log/id.h"
#include "log/record.h"

namespace weightwire {

struct BoardMessage {
  std::string key;
  std::string text;
};

// So much is read of a message.
inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{64} << 20;

[[nodiscard]] std::string ReportKey(std::uint64_t call, std::uint64_t rank);
[[nodiscard]] std::string VerdictKey(std::uint64_t call);
[[nodiscard]] std::string SeenKey(std::uint64_t call, std::uint64_t rank);
// `what`: a call, or the id of an anchor. `rank` none: of who decides. Numbers count from 0.
[[nodiscard]] std::string AliveKey(const std::string& what, std::optional<std::uint64_t> rank, std::uint64_t number);
[[nodiscard]] std::string PieceKey(const Id& anchor, std::uint64_t rank);
[[nodiscard]] std::string EndedKey(const Id& anchor);

// What rank 0 tells the others when all of them start.
struct GroupStart {
  Id run;
  std::optional<Version> newest;  // none: the run has no version yet
  Sha256Digest record_hash{};     // of the newest
  Id next_anchor;                 // as Verdict's
};
[[nodiscard]] std::string ToJson(const GroupStart& start);
Result<GroupStart> ParseGroupStart(std::string_view json);

// A piece of an anchor that is in the store. Where its bytes belong follows from the rank and its shards.
struct SentPiece {
  std::uint64_t size_bytes = 0;
  Sha256Digest hash{};  // object hash
};

struct RankReport {
  std::optional<Error> error;  // the rank has nothing; the rest, up to `step`, is then empty
  bool needs_rebase = false;   // … because its base is lost, and cannot be had from the bucket
  std::uint64_t step = 0;
  Sha256Digest layout{};           // of the whole state
  std::string shards;              // ToText(Shards)
  bool whole = false;              // there is no delta: all of the state is sent, in a piece
  std::vector<Digest> before;      // by shard; of a delta
  std::vector<Digest> after;       // by shard
  std::uint64_t changed = 0;       // units
  std::optional<PartRef> part;     // if anything changed
  std::optional<SentPiece> piece;  // none: the rank has nothing of the state
};
[[nodiscard]] std::string ToJson(const RankReport& report);
Result<RankReport> ParseRankReport(std::string_view json);

struct Verdict {
  enum class Outcome : std::uint8_t { kCommitted, kSame, kFailed, kStopped };
  Outcome outcome = Outcome::kFailed;
  std::optional<Error> error;  // of the last two
  bool rebase = false;         // the next call makes a version without a delta
  std::string record_json;     // of the version, if it is committed
  std::optional<Id> anchor;    // an anchor of this version is to be written: each rank its piece
  Id next_anchor;              // the id of the next version's anchor, should it have no delta
};
[[nodiscard]] std::string ToJson(const Verdict& verdict);
Result<Verdict> ParseVerdict(std::string_view json);

struct PieceReport {
  std::optional<Error> error;
  std::string shards;
  std::vector<Digest> digests;     // by shard
  std::optional<SentPiece> piece;  // none: the rank has nothing of the state
};
[[nodiscard]] std::string ToJson(const PieceReport& report);
Result<PieceReport> ParsePieceReport(std::string_view json);

}  // namespace weightwire
