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

constexpr std::string_view kFormat = "weightwire-anchor";

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
    to.Text("name", file.name).Number("size", file.size_bytes).Hash("hash", file.hash);
  }
  FieldsWriter fields;
  fields.Text("format", kFormat).AnId("run", manifest.run).Number("version", manifest.name.version);
  fields.AnId("id", manifest.name.id).Hash("layout", manifest.layout).Hash("state", manifest.state);
  fields.Number("delta_bytes", manifest.delta_bytes).Objects("files", files);
  return fields.Finish();
}

Result<AnchorManifest> ParseAnchorManifest(std::string_view json) {
  WW_TRY(const JsonValue fields, ParseFields(json, kMaxManifestBytes, kFormat));
  AnchorManifest manifest;
  WW_TRY(manifest.run, fields.AnId("run"));
  WW_TRY(manifest.name.version, fields.Number("version"));
  WW_TRY(manifest.name.id, fields.AnId("id"));
  WW_TRY(manifest.layout, fields.Hash("layout"));
  WW_TRY(manifest.state, fields.Hash("state"));
  WW_TRY(manifest.delta_bytes, fields.Number("delta_bytes"));
  WW_TRY(const auto* list, fields.List("files", kMaxAnchorFiles));
  std::set<std::string> names;
  std::uint64_t total = 0;
  for (const JsonValue& value : *list) {
    WW_RETURN_IF_ERROR(value.ExpectObject());
    AnchorFile file;
    WW_TRY(file.name, value.Text("name"));
    WW_TRY(file.size_bytes, value.Number("size"));
    WW_TRY(file.hash, value.Hash("hash"));
    WW_RETURN_IF_ERROR(CheckFileName(file.name));
    if (!names.insert(file.name).second) {
      return Error(ErrorCode::kCorrupt, fmt::format("it has the file {} twice", Quoted(file.name)));
    }
    const auto sum = CheckedAdd(total, file.size_bytes);
    if (!sum.has_value()) return Error(ErrorCode::kCorrupt, "its files have too many bytes");
    total = *sum;
    manifest.files.push_back(std::move(file));
  }
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
