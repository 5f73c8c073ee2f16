#include "follow/anchor_places.h"

#include <algorithm>

#include "base/check.h"

namespace weightwire {

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

}  // namespace weightwire
