#include "log/anchor.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/bytes.h"
#include "log/fields.h"
#include "log/limits.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

constexpr std::string_view kAnchorFormat = "weightwire-anchor";

FieldsWriter ToFields(const Place& place) {
  FieldsWriter fields;
  fields.Number("file", place.file).Number("offset_bytes", place.at).Number("row_bytes", place.row_bytes);
  fields.Number("rows", place.rows).Number("stride_bytes", place.stride);
  return fields;
}

Result<std::vector<Place>> ParsePlaces(const JsonValue& file, const std::vector<AssembledFile>& assembled,
                                       std::uint64_t size_bytes) {
  WW_TRY(const auto* list, file.List("places", kMaxJsonValues));
  std::vector<Place> places;
  std::uint64_t total = 0;
  for (const JsonValue& value : *list) {
    WW_RETURN_IF_ERROR(value.ExpectObject());
    Place place;
    WW_TRY(place.file, value.Number("file"));
    WW_TRY(place.at, value.Number("offset_bytes"));
    WW_TRY(place.row_bytes, value.Number("row_bytes"));
    WW_TRY(place.rows, value.Number("rows"));
    WW_TRY(place.stride, value.Number("stride_bytes"));
    const auto bytes = CheckedMul(place.row_bytes, place.rows);
    const auto sum = CheckedAdd(total, bytes.value_or(0));
    if (!bytes.has_value() || *bytes == 0 || !sum.has_value()) {
      return Error(ErrorCode::kCorrupt, "a place of a piece has no bytes, or too many");
    }
    total = *sum;
    const auto last = CheckedMul(place.stride, place.rows - 1);
    const auto begin = CheckedAdd(place.at, last.value_or(0));
    const auto end = CheckedAdd(begin.value_or(0), place.row_bytes);
    const bool fits = place.file < assembled.size() && last.has_value() && begin.has_value() && end.has_value() &&
                      *end <= assembled[place.file].size_bytes && (place.rows == 1 || place.stride >= place.row_bytes);
    if (!fits) return Error(ErrorCode::kCorrupt, "a place of a piece is not within a file");
    places.push_back(place);
  }
  if (places.empty()) return Error(ErrorCode::kCorrupt, "a piece has no places");
  if (total != size_bytes) return Error(ErrorCode::kCorrupt, "the places of a piece do not add up to its size");
  return places;
}

Result<std::vector<AssembledFile>> ParseAssembled(const JsonValue& fields) {
  std::vector<AssembledFile> assembled;
  WW_TRY(const auto* list, fields.List("assembled", kMaxAnchorFiles));
  for (const JsonValue& value : *list) {
    WW_RETURN_IF_ERROR(value.ExpectObject());
    AssembledFile file;
    WW_TRY(file.name, value.Text("name"));
    WW_TRY(file.size_bytes, value.Number("bytes"));
    WW_RETURN_IF_ERROR(CheckFileName(file.name));
    // Nothing else is covered by the state's digest.
    if (!file.name.ends_with(".safetensors")) {
      return Error(ErrorCode::kCorrupt, fmt::format("{} is in pieces, but holds no weights", Quoted(file.name)));
    }
    assembled.push_back(std::move(file));
  }
  return assembled;
}

// That the pieces have as many bytes for each assembled file as it has. Where two have the same place and none another,
// the bits there are none that the state's digest allows, or no header.
Status CheckComplete(const AnchorManifest& manifest) {
  std::vector<std::uint64_t> given(manifest.assembled.size());
  for (const AnchorFile& file : manifest.files) {
    for (const Place& place : file.places) {
      const auto sum = CheckedAdd(given[place.file], place.row_bytes * place.rows);
      given[place.file] = sum.value_or(UINT64_MAX);
    }
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i] == manifest.assembled[i].size_bytes) continue;
    return Error(ErrorCode::kCorrupt, fmt::format("its pieces do not make up {}", Quoted(manifest.assembled[i].name)));
  }
  return Ok();
}

}  // namespace

std::uint64_t AnchorManifest::TotalBytes() const {
  std::uint64_t bytes = 0;
  for (const AnchorFile& file : files) bytes += file.size_bytes;
  return bytes;
}

std::string ToJson(const AnchorManifest& manifest) {
  std::vector<FieldsWriter> files;
  for (const AnchorFile& file : manifest.files) {
    FieldsWriter& to = files.emplace_back();
    to.Text("name", file.name).Number("bytes", file.size_bytes).Hash("hash", file.hash);
    if (file.places.empty()) continue;
    std::vector<FieldsWriter> places;
    for (const Place& place : file.places) places.push_back(ToFields(place));
    to.Objects("places", places);
  }
  FieldsWriter fields;
  fields.Text("format", kAnchorFormat).AnId("run_id", manifest.run).Number("version", manifest.name.version);
  fields.AnId("id", manifest.name.id).Hash("layout_hash", manifest.layout).Hash("digest", manifest.state);
  fields.Number("total_delta_bytes", manifest.delta_bytes).Objects("files", files);
  if (!manifest.assembled.empty()) {
    std::vector<FieldsWriter> assembled;
    for (const AssembledFile& file : manifest.assembled) {
      assembled.emplace_back().Text("name", file.name).Number("bytes", file.size_bytes);
    }
    fields.Objects("assembled", assembled);
  }
  return fields.Finish();
}

Result<AnchorManifest> ParseAnchorManifest(std::string_view json) {
  WW_TRY(const JsonValue fields, ParseFields(json, kMaxAnchorManifestBytes, kAnchorFormat));
  AnchorManifest manifest;
  WW_TRY(manifest.run, fields.AnId("run_id"));
  WW_TRY(manifest.name.version, fields.Number("version"));
  WW_TRY(manifest.name.id, fields.AnId("id"));
  WW_TRY(manifest.layout, fields.Hash("layout_hash"));
  WW_TRY(manifest.state, fields.Hash("digest"));
  WW_TRY(manifest.delta_bytes, fields.Number("total_delta_bytes"));
  WW_TRY(const auto* list, fields.List("files", kMaxAnchorFiles));
  if (fields.Get("assembled").ok()) {
    WW_TRY(manifest.assembled, ParseAssembled(fields));
  }
  std::set<std::string> names;
  const auto name_once = [&](const std::string& name) -> Status {
    if (names.insert(name).second) return Ok();
    return Error(ErrorCode::kCorrupt, fmt::format("it has the file {} twice", Quoted(name)));
  };
  for (const AssembledFile& file : manifest.assembled) WW_RETURN_IF_ERROR(name_once(file.name));
  std::uint64_t total = 0;
  for (const JsonValue& value : *list) {
    WW_RETURN_IF_ERROR(value.ExpectObject());
    AnchorFile file;
    WW_TRY(file.name, value.Text("name"));
    WW_TRY(file.size_bytes, value.Number("bytes"));
    WW_TRY(file.hash, value.Hash("hash"));
    WW_RETURN_IF_ERROR(CheckFileName(file.name));
    WW_RETURN_IF_ERROR(name_once(file.name));
    if (value.Get("places").ok()) {
      WW_TRY(file.places, ParsePlaces(value, manifest.assembled, file.size_bytes));
    }
    const auto sum = CheckedAdd(total, file.size_bytes);
    if (!sum.has_value()) return Error(ErrorCode::kCorrupt, "its files have too many bytes");
    total = *sum;
    manifest.files.push_back(std::move(file));
  }
  WW_RETURN_IF_ERROR(CheckComplete(manifest));
  // A directory cannot hold a file and a folder of one name.
  for (const std::string& name : names) {
    const auto below = names.lower_bound(name + "/");
    if (below != names.end() && below->starts_with(name + "/")) {
      return Error(ErrorCode::kCorrupt, fmt::format("its file {} is also a folder", Quoted(name)));
    }
  }
  return manifest;
}

}  // namespace weightwire
