#include "follow/anchor_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/failure_policy.h"
#include "base/object_hash.h"

namespace weightwire {
namespace {

// Large enough for a store to fetch several ranges of it in parallel.
constexpr std::uint64_t kPortionBytes = 8 * kHashChunkBytes;

}  // namespace

AnchorPlaces::AnchorPlaces(const AnchorManifest& manifest) {
  for (const AssembledFile& file : manifest.assembled) files_.push_back({file.name, file.size_bytes, {}, {}});
  for (const AnchorFile& file : manifest.files) {
    Object& object = objects_.emplace_back();
    if (file.places.empty()) {
      object.file = files_.size();
      files_.push_back(file);
      continue;
    }
    object.places = file.places;
    std::uint64_t start = 0;
    for (const Place& place : file.places) {
      object.starts.push_back(start);
      start += place.row_bytes * place.rows;
    }
  }
}

Status AnchorPlaces::Write(TargetLoad& load, std::size_t index, std::uint64_t offset,
                           std::span<const std::uint8_t> bytes) const {
  const Object& object = objects_[index];
  if (object.places.empty()) return load.WriteAt(object.file, offset, bytes);
  while (!bytes.empty()) {
    const auto after = std::ranges::upper_bound(object.starts, offset);
    WW_CHECK(after != object.starts.begin());
    const auto i = static_cast<std::size_t>(after - object.starts.begin()) - 1;
    const Place& place = object.places[i];
    const std::uint64_t within = offset - object.starts[i];
    const std::uint64_t row = within / place.row_bytes;
    WW_CHECK(row < place.rows);
    const std::uint64_t column = within % place.row_bytes;
    const std::uint64_t size = std::min<std::uint64_t>(place.row_bytes - column, bytes.size());
    WW_RETURN_IF_ERROR(load.WriteAt(place.file, place.at + row * place.stride + column, bytes.first(size)));
    offset += size;
    bytes = bytes.subspan(size);
  }
  return Ok();
}

AnchorLoad::AnchorLoad(Run run, KnownAnchor anchor, KnownRecord record, std::shared_ptr<const Layout> layout,
                       ThreadPool& pool)
    : run_(std::move(run)),
      anchor_(std::move(anchor)),
      record_(std::move(record)),
      layout_(std::move(layout)),
      places_(anchor_.manifest),
      pool_(pool) {}

Result<std::unique_ptr<AnchorLoad>> AnchorLoad::Begin(const Run& run, KnownAnchor anchor, KnownRecord record,
                                                      std::shared_ptr<const Layout> layout, Target& target,
                                                      ThreadPool& pool) {
  std::unique_ptr<AnchorLoad> load(new AnchorLoad(run, std::move(anchor), std::move(record), std::move(layout), pool));
  WW_TRY(load->load_, target.BeginLoad(load->places_.files()));
  return load;
}

bool AnchorLoad::IsComplete() const { return object_ == anchor_.manifest.files.size(); }

std::string AnchorLoad::ObjectKey() const { return AnchorFolder(name()) + anchor_.manifest.files[object_].name; }

Result<LoadedPortion> AnchorLoad::LoadPortion() {
  WW_CHECK(!IsComplete());
  const AnchorFile& file = anchor_.manifest.files[object_];
  std::vector<std::uint8_t> portion(std::min(kPortionBytes, file.size_bytes - offset_));
  if (const Status read = run_.store().Read(ObjectKey(), offset_, portion); !read.ok()) {
    if (ReactionTo(read.error()) != Reaction::kFetchAgain) return read.error();
    return LoadedPortion{.lost = read.error()};
  }
  WW_RETURN_IF_ERROR(places_.Write(*load_, object_, offset_, portion));
  AddChunkHashes(portion);
  offset_ += portion.size();
  LoadedPortion loaded{.bytes = portion.size()};
  if (offset_ < file.size_bytes) return loaded;
  if (ObjectHashOfChunks(chunk_hashes_) == file.hash) {
    SkipObject();
    loaded.completes_object = true;
    return loaded;
  }
  loaded.lost = Error(ErrorCode::kCorrupt,
                      fmt::format("object {} in {} is damaged: its bytes are not those that anchor.json lists",
                                  ObjectKey(), run_.store().Name()));
  offset_ = 0;
  chunk_hashes_.clear();
  return loaded;
}

void AnchorLoad::SkipObject() {
  WW_CHECK(!IsComplete());
  ++object_;
  offset_ = 0;
  chunk_hashes_.clear();
}

// REQUIRES: `portion` consists of whole chunks, except for the object's last one.
void AnchorLoad::AddChunkHashes(std::span<const std::uint8_t> portion) {
  const std::size_t first = chunk_hashes_.size();
  chunk_hashes_.resize(first + HashChunkCount(portion.size()));
  const std::span<Sha256Digest> added = std::span(chunk_hashes_).subspan(first);
  // Two chunks to a task, because a pair is hashed in little more than the time of one.
  pool_.ParallelFor((added.size() + 1) / 2, [&](std::size_t pair, std::size_t) {
    const std::uint64_t at = 2 * pair * kHashChunkBytes;
    HashChunks(portion.subspan(at, std::min(2 * kHashChunkBytes, portion.size() - at)),
               added.subspan(2 * pair, std::min<std::size_t>(2, added.size() - 2 * pair)));
  });
}

}  // namespace weightwire
