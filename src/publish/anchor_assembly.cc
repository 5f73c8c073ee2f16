#include "publish/anchor_assembly.h"

#include <fmt/format.h>

#include <utility>

#include "base/bytes.h"
#include "base/object_hash.h"
#include "publish/piece_writer.h"

namespace weightwire {

Result<AssembledAnchor> AssembleAnchor(const Run& run, const AnchorSubject& subject, const Cover& cover,
                                       const std::vector<std::optional<SentPiece>>& pieces,
                                       const CheckpointOptions& files) {
  WW_TRY(const AssembledPlan plan, PlanAssembled(*cover.layout, files));
  AssembledAnchor assembled;
  AnchorManifest& manifest = assembled.manifest = ManifestOf(run, subject, *cover.layout);
  manifest.assembled = plan.files;
  if (plan.plan.size() > 1) assembled.index = IndexText(plan.plan);
  for (std::uint64_t rank = 0; rank < pieces.size(); ++rank) {
    std::vector<Place> places = PiecePlaces(rank, *cover.shards[rank], plan);
    std::uint64_t bytes = 0;
    for (const Place& place : places) bytes += place.rows * place.row_bytes;
    if (bytes != (pieces[rank].has_value() ? pieces[rank]->size_bytes : 0)) {
      return Error(ErrorCode::kCorrupt, fmt::format("the piece of rank {} is not of the size of its shards", rank));
    }
    if (pieces[rank].has_value()) manifest.files.push_back({PieceName(rank), bytes, pieces[rank]->hash, places});
  }
  // A manifest that no reader can parse must not be written: the version could never be loaded.
  if (const auto readable = ParseAnchorManifest(ToJson(manifest)); !readable.ok()) {
    return readable.error().In(fmt::format(
        "the list of the pieces of {} ranks, with {} tensors, is more than readers take; publish from fewer ranks",
        pieces.size(), cover.layout->size()));
  }
  return assembled;
}

Result<KnownAnchor> PutAssembled(const Run& run, const AssembledAnchor& assembled, const AnchorOptions& options) {
  AnchorManifest manifest = assembled.manifest;
  const auto put = [&](const std::string& name, std::span<const std::uint8_t> bytes) -> Status {
    WW_RETURN_IF_ERROR(run.store().Put(AnchorFolder(manifest.name) + name, bytes));
    manifest.files.push_back({name, bytes.size(), ObjectHash(bytes)});
    return Ok();
  };
  if (!assembled.index.empty()) WW_RETURN_IF_ERROR(put(kIndexFileName, BytesOf(assembled.index)));
  for (const ExtraFile& file : options.extra) {
    WW_TRY(const std::vector<std::uint8_t> bytes, options.file_system->Read(file.path, kMaxPutBytes));
    WW_RETURN_IF_ERROR(put(file.name, bytes));
  }
  return PutManifest(run, std::move(manifest));
}

}  // namespace weightwire
