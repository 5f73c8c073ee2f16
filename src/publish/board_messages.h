// What the ranks of a publisher write on their board, a map from keys to texts that all of them can read. A key is put
// once. Nothing on the board makes a version: only its record does.
//
// Each rank numbers its calls of publish from 0, and call n of all ranks forms one version. For each call:
//
//   report/<call>/<rank>     what the rank contributes to it, or why it cannot
//   verdict/<call>           its result, by rank 0
//   seen/<call>/<rank>       the rank has read the verdict
//   alive/<what>/<rank>/<n>  a heartbeat: the rank, or rank 0 as the one that decides ("verdict"), still works on the
//   call
//                            or the anchor
//   piece/<id>/<rank>        the rank's piece of the anchor <id>, or why there is none
//   ended/<id>               the anchor <id> is complete, or abandoned: no rank need write a piece of it
//
// The rank that put a key removes it, except report, verdict and seen: rank 0 removes these once all ranks have read
// the verdict.
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
#include "publish/contribution.h"

namespace weightwire {

struct BoardMessage {
  std::string key;
  std::string text;
};

// What this process has for the board: messages to be put, in this order, and keys to be removed.
struct BoardOutbox {
  std::vector<BoardMessage> outgoing;
  std::vector<std::string> unneeded;
};

// A longer message is an error.
inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{64} << 20;

[[nodiscard]] std::string ReportKey(std::uint64_t call, std::uint64_t rank);
[[nodiscard]] std::string VerdictKey(std::uint64_t call);
[[nodiscard]] std::string SeenKey(std::uint64_t call, std::uint64_t rank);
// `what`: a call, or the id of an anchor. `rank`: none for the one that decides. Numbers count from 0.
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

[[nodiscard]] std::string ToJson(const Contribution& report);
Result<Contribution> ParseContribution(std::string_view json);

// The call of a verdict is in its key.
[[nodiscard]] std::string ToJson(const Verdict& verdict);
Result<Verdict> ParseVerdict(std::string_view json);

// A rank's piece of an anchor of a version that is committed.
struct PieceReport {
  std::optional<Error> error;
  std::string shards;
  std::vector<Digest> digests;     // by shard
  std::optional<SentPiece> piece;  // none if the rank has no shard
};
[[nodiscard]] std::string ToJson(const PieceReport& report);
Result<PieceReport> ParsePieceReport(std::string_view json);

}  // namespace weightwire
