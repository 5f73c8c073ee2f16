#include "publish/record_maker.h"

#include <fmt/format.h>

#include <utility>

#include "base/bytes.h"
#include "codec/digest/state.h"
#include "log/run_manifest.h"

namespace weightwire {
namespace {

Error Disagree(std::uint64_t rank, const std::string& what) {
  return {ErrorCode::kMismatch, fmt::format("rank {} and rank 0 disagree about {}", rank, what)};
}

Status CheckAgreement(const RecordRequest& request) {
  const Contribution& first = request.contributions.front();
  for (std::uint64_t rank = 0; rank < request.contributions.size(); ++rank) {
    const Contribution& one = request.contributions[rank];
    if (one.step != first.step) {
      return Disagree(rank, fmt::format("the step: {} there, {} here", one.step, first.step));
    }
    if (one.layout != first.layout) return Disagree(rank, "the names, types and shapes of the tensors");
    if (one.whole != first.whole) return Disagree(rank, "whether the version before is there");
  }
  if (request.context.layout == nullptr || request.context.layout->hash() != first.layout) {
    return Error(ErrorCode::kMismatch, "rank 0 has reported another layout than it has");
  }
  return Ok();
}

Result<std::shared_ptr<const Cover>> CheckShards(const RecordRequest& request,
                                                 const std::shared_ptr<const Cover>& known) {
  const std::shared_ptr<const Layout>& layout = request.context.layout;
  auto cover = std::make_shared<Cover>();
  cover->layout = layout;
  if (!request.in_shards) return std::shared_ptr<const Cover>(std::move(cover));
  for (const Contribution& one : request.contributions) cover->texts.push_back(one.shards);
  if (known != nullptr && *known->layout == *layout && known->texts == cover->texts) return known;
  for (const std::string& text : cover->texts) {
    WW_TRY(std::shared_ptr<const Shards> shards, ParseShards(text, layout));
    cover->shards.push_back(std::move(shards));
  }
  WW_RETURN_IF_ERROR(CheckCover(*layout, cover->shards));
  return std::shared_ptr<const Cover>(std::move(cover));
}

Status CheckDigestCounts(const RecordRequest& request, const Cover& cover) {
  for (std::uint64_t rank = 0; rank < request.contributions.size(); ++rank) {
    const Contribution& one = request.contributions[rank];
    const CallContext& context = request.context;
    const std::size_t after = cover.shards.empty() ? context.layout->size() : cover.shards[rank]->size();
    std::size_t before = cover.shards.empty() && !one.whole ? context.layout_before->size() : after;
    if (one.whole) before = 0;
    if (one.after.size() == after && one.before.size() == before) continue;
    return Error(ErrorCode::kCorrupt, fmt::format("rank {} has not reported a digest for each of its shards", rank));
  }
  return Ok();
}

// The parts must lead from exactly the bits of the previous version.
Status CheckBase(const RecordRequest& request, const Cover& cover) {
  std::vector<const std::vector<Digest>*> before;
  for (const Contribution& one : request.contributions) before.push_back(&one.before);
  const bool fits =
      request.parent.has_value() && request.parent->record.layout == request.context.layout_before->hash() &&
      StateDigest(*request.context.layout_before, AddUp(*request.context.layout_before, cover.shards, before)) ==
          request.parent->record.state;
  if (fits) return Ok();
  return Error(ErrorCode::kMismatch, fmt::format("the ranks do not all begin at version {}; publish again",
                                                 request.parent.has_value() ? request.parent->record.version : 0));
}

}  // namespace

std::vector<Digest> AddUp(const Layout& layout, const std::vector<std::shared_ptr<const Shards>>& shards,
                          const std::vector<const std::vector<Digest>*>& digests) {
  if (shards.empty()) return *digests.front();
  std::vector<Digest> sums(layout.size());
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    for (std::size_t i = 0; i < shards[rank]->size(); ++i) sums[shards[rank]->all()[i].tensor] += (*digests[rank])[i];
  }
  return sums;
}

Result<CheckedCall> CheckContributions(const RecordRequest& request, const std::shared_ptr<const Cover>& known) {
  WW_RETURN_IF_ERROR(CheckAgreement(request));
  CheckedCall checked;
  WW_TRY(checked.cover, CheckShards(request, known));
  WW_RETURN_IF_ERROR(CheckDigestCounts(request, *checked.cover));
  if (!request.whole()) WW_RETURN_IF_ERROR(CheckBase(request, *checked.cover));
  std::vector<const std::vector<Digest>*> after;
  bool has_parts = false;
  for (const Contribution& one : request.contributions) {
    after.push_back(&one.after);
    has_parts = has_parts || one.part.has_value();
  }
  checked.state = StateDigest(*request.context.layout, AddUp(*request.context.layout, checked.cover->shards, after));
  checked.same = !request.whole() && !has_parts && request.contributions.front().step == request.parent->record.step;
  return checked;
}

Result<MadeRecord> MakeRecord(const RecordRequest& request, const CheckedCall& checked,
                              const std::optional<AnchorRef>& own_anchor) {
  const Contribution& first = request.contributions.front();
  Record record;
  record.run = request.run;
  record.version = request.version();
  record.step = first.step;
  record.time = request.context.time;
  record.writer = request.writer;
  record.layout = first.layout;
  record.state = checked.state;
  record.chain = record.version;
  if (request.in_shards) record.read = {std::string(kPiecesFeature)};
  if (request.parent.has_value()) {
    record.parent = request.parent->hash;
    record.delta_bytes = request.parent->record.delta_bytes;
  }
  for (const Contribution& one : request.contributions) record.changed += one.changed;
  if (request.whole()) {
    record.anchor = own_anchor;
  } else {
    record.delta.emplace();
    for (const Contribution& one : request.contributions) {
      if (!one.part.has_value()) continue;
      record.delta_bytes += one.part->size_bytes;
      record.delta->push_back(*one.part);
    }
    record.chain = request.parent->record.chain;
    record.anchor = request.newest_anchor;
  }
  MadeRecord made;
  made.json = ToJson(record);
  // A record that no reader can parse must not become a version: nothing could come after it.
  if (const auto readable = ParseRecord(made.json); !readable.ok()) return readable.error();
  made.known = {std::move(record), Sha256Of(BytesOf(made.json))};
  return made;
}

}  // namespace weightwire
