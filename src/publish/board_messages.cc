#include "publish/board_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "log/fields.h"

namespace weightwire {
namespace {

constexpr std::string_view kStart = "weightwire-start";
constexpr std::string_view kReport = "weightwire-report";
constexpr std::string_view kVerdict = "weightwire-verdict";
constexpr std::string_view kPiece = "weightwire-piece";
constexpr std::array<std::string_view, 4> kOutcomes = {"committed", "same", "failed", "stopped"};

void WriteError(FieldsWriter& out, const std::optional<Error>& error) {
  if (!error.has_value()) {
    out.Null("error");
    return;
  }
  FieldsWriter fields;
  fields.SmallNumber("code", static_cast<std::uint64_t>(error->code())).Text("message", error->message());
  out.Object("error", fields);
}

Result<std::optional<Error>> ReadError(const JsonValue& object) {
  WW_TRY(const JsonValue* fields, object.ObjectOrNull("error"));
  if (fields == nullptr) return std::optional<Error>();
  WW_TRY(const std::uint64_t code, fields->SmallNumber("code"));
  WW_TRY(std::string message, fields->Text("message"));
  const bool known = code >= static_cast<std::uint64_t>(ErrorCode::kInvalidArgument) &&
                     code <= static_cast<std::uint64_t>(ErrorCode::kTimeout);
  if (!known) return Error(ErrorCode::kCorrupt, "a message of another rank has an unknown error in it");
  return std::optional(Error(static_cast<ErrorCode>(code), std::move(message)));
}

// 32 hex digits each, one after another.
std::string DigestsText(const std::vector<Digest>& digests) {
  std::string text;
  text.reserve(digests.size() * 2 * kDigestBytes);
  for (const Digest& digest : digests) text += digest.ToHex();
  return text;
}

Result<std::vector<Digest>> ReadDigests(const JsonValue& object, const std::string& key) {
  WW_TRY(const std::string text, object.Text(key));
  const Error bad(ErrorCode::kCorrupt, "a message of another rank has no digests where they should be");
  if (text.size() % (2 * kDigestBytes) != 0) return bad;
  std::vector<Digest> digests;
  for (std::size_t at = 0; at < text.size(); at += 2 * kDigestBytes) {
    // As many digits as an id has.
    const auto bytes = IdFromHex(std::string_view(text).substr(at, 2 * kDigestBytes));
    if (!bytes.has_value()) return bad;
    digests.push_back(Digest::FromBytes(bytes->bytes));
  }
  return digests;
}

void WritePiece(FieldsWriter& out, const std::optional<SentPiece>& piece) {
  if (!piece.has_value()) {
    out.Null("piece");
    return;
  }
  FieldsWriter fields;
  fields.Number("bytes", piece->size_bytes).Hash("hash", piece->hash);
  out.Object("piece", fields);
}

Result<std::optional<SentPiece>> ReadPiece(const JsonValue& object) {
  WW_TRY(const JsonValue* fields, object.ObjectOrNull("piece"));
  if (fields == nullptr) return std::optional<SentPiece>();
  SentPiece piece;
  WW_TRY(piece.size_bytes, fields->Number("bytes"));
  WW_TRY(piece.hash, fields->Hash("hash"));
  return std::optional(piece);
}

}  // namespace

std::string ReportKey(std::uint64_t call, std::uint64_t rank) { return fmt::format("report/{}/{}", call, rank); }
std::string VerdictKey(std::uint64_t call) { return fmt::format("verdict/{}", call); }
std::string SeenKey(std::uint64_t call, std::uint64_t rank) { return fmt::format("seen/{}/{}", call, rank); }
std::string AliveKey(const std::string& what, std::optional<std::uint64_t> rank, std::uint64_t number) {
  return fmt::format("alive/{}/{}/{}", what, rank.has_value() ? fmt::to_string(*rank) : "verdict", number);
}
std::string PieceKey(const Id& anchor, std::uint64_t rank) { return fmt::format("piece/{}/{}", ToHex(anchor), rank); }
std::string EndedKey(const Id& anchor) { return fmt::format("ended/{}", ToHex(anchor)); }

std::string ToJson(const GroupStart& start) {
  FieldsWriter out;
  out.Text("format", kStart).AnId("run_id", start.run);
  out.Number("newest", start.newest).Hash("record_hash", start.record_hash);
  return out.AnId("next_anchor", start.next_anchor).Finish();
}

Result<GroupStart> ParseGroupStart(std::string_view json) {
  WW_TRY(const JsonValue fields, ParseFields(json, kMaxMessageBytes, kStart));
  GroupStart start;
  WW_TRY(start.run, fields.AnId("run_id"));
  WW_TRY(start.newest, fields.NumberOrNull("newest"));
  WW_TRY(start.record_hash, fields.Hash("record_hash"));
  WW_TRY(start.next_anchor, fields.AnId("next_anchor"));
  return start;
}

std::string ToJson(const Contribution& report) {
  FieldsWriter out;
  out.Text("format", kReport);
  WriteError(out, report.error);
  out.Boolean("needs_rebase", report.needs_rebase).Number("step", report.step).Hash("layout_hash", report.layout);
  out.Text("shards", report.shards).Boolean("whole", report.whole).Text("before", DigestsText(report.before));
  out.Text("after", DigestsText(report.after)).Number("changed_elements", report.changed);
  if (report.part.has_value()) {
    FieldsWriter part;
    part.Text("key", report.part->key).Number("bytes", report.part->size_bytes).Hash("hash", report.part->hash);
    out.Object("part", part);
  } else {
    out.Null("part");
  }
  WritePiece(out, report.piece);
  return out.Finish();
}

Result<Contribution> ParseContribution(std::string_view json) {
  WW_TRY(const JsonValue fields, ParseFields(json, kMaxMessageBytes, kReport));
  Contribution report;
  WW_TRY(report.error, ReadError(fields));
  WW_TRY(report.needs_rebase, fields.Boolean("needs_rebase"));
  WW_TRY(report.step, fields.Number("step"));
  WW_TRY(report.layout, fields.Hash("layout_hash"));
  WW_TRY(report.shards, fields.Text("shards"));
  WW_TRY(report.whole, fields.Boolean("whole"));
  WW_TRY(report.before, ReadDigests(fields, "before"));
  WW_TRY(report.after, ReadDigests(fields, "after"));
  WW_TRY(report.changed, fields.Number("changed_elements"));
  WW_TRY(const JsonValue* part, fields.ObjectOrNull("part"));
  if (part != nullptr) {
    report.part.emplace();
    WW_TRY(report.part->key, part->Text("key"));
    WW_TRY(report.part->size_bytes, part->Number("bytes"));
    WW_TRY(report.part->hash, part->Hash("hash"));
  }
  WW_TRY(report.piece, ReadPiece(fields));
  return report;
}

std::string ToJson(const Verdict& verdict) {
  FieldsWriter out;
  out.Text("format", kVerdict).Text("outcome", kOutcomes[static_cast<std::size_t>(verdict.outcome)]);
  WriteError(out, verdict.error);
  out.Boolean("rebase", verdict.rebase).Text("record", verdict.record_json);
  if (verdict.anchor.has_value()) {
    out.AnId("anchor", *verdict.anchor);
  } else {
    out.Null("anchor");
  }
  return out.AnId("next_anchor", verdict.next_anchor).Finish();
}

Result<Verdict> ParseVerdict(std::string_view json) {
  WW_TRY(const JsonValue fields, ParseFields(json, kMaxMessageBytes, kVerdict));
  Verdict verdict;
  WW_TRY(const std::string outcome, fields.Text("outcome"));
  const auto* const known = std::find(kOutcomes.begin(), kOutcomes.end(), outcome);
  if (known == kOutcomes.end()) return Error(ErrorCode::kCorrupt, "a verdict of rank 0 has an unknown outcome");
  verdict.outcome = static_cast<Verdict::Outcome>(known - kOutcomes.begin());
  WW_TRY(verdict.error, ReadError(fields));
  const bool bad = verdict.outcome == Verdict::Outcome::kFailed || verdict.outcome == Verdict::Outcome::kStopped;
  if (bad != verdict.error.has_value()) {
    return Error(ErrorCode::kCorrupt, "a verdict of rank 0 contradicts itself");
  }
  WW_TRY(verdict.rebase, fields.Boolean("rebase"));
  WW_TRY(verdict.record_json, fields.Text("record"));
  WW_TRY(const JsonValue* anchor, fields.Get("anchor"));
  if (!anchor->is_null()) {
    WW_TRY(verdict.anchor, fields.AnId("anchor"));
  }
  WW_TRY(verdict.next_anchor, fields.AnId("next_anchor"));
  return verdict;
}

std::string ToJson(const PieceReport& report) {
  FieldsWriter out;
  out.Text("format", kPiece);
  WriteError(out, report.error);
  out.Text("shards", report.shards).Text("digests", DigestsText(report.digests));
  WritePiece(out, report.piece);
  return out.Finish();
}

Result<PieceReport> ParsePieceReport(std::string_view json) {
  WW_TRY(const JsonValue fields, ParseFields(json, kMaxMessageBytes, kPiece));
  PieceReport report;
  WW_TRY(report.error, ReadError(fields));
  WW_TRY(report.shards, fields.Text("shards"));
  WW_TRY(report.digests, ReadDigests(fields, "digests"));
  WW_TRY(report.piece, ReadPiece(fields));
  return report;
}

}  // namespace weightwire
