#include "log/run_manifest.h"

#include <fmt/format.h>

#include <algorithm>

#include "log/fields.h"
#include "log/limits.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

constexpr std::string_view kRunFormat = "weightwire-run";
constexpr std::uint64_t kFormatVersion = 1;

}  // namespace

std::string ToJson(const RunManifest& manifest) {
  FieldsWriter fields;
  fields.Text("format", kRunFormat).SmallNumber("format_version", kFormatVersion).AnId("run_id", manifest.run);
  fields.Boolean("single_writer", manifest.single_writer).Texts("read_features", manifest.read);
  fields.Texts("write_features", manifest.write);
  return fields.Finish();
}

Result<RunManifest> ParseRunManifest(std::string_view json) {
  WW_TRY(const JsonValue fields, ParseFields(json, kMaxRunManifestBytes, kRunFormat));
  WW_TRY(const std::uint64_t version, fields.SmallNumber("format_version"));
  if (version != kFormatVersion) {
    return Error(
        ErrorCode::kUnsupported,
        fmt::format("the run has format version {}, and this weightwire knows only version {}; update weightwire",
                    version, kFormatVersion));
  }
  RunManifest manifest;
  // Checked first, because the rest may look different to who does not know the feature.
  WW_TRY(manifest.read, fields.Texts("read_features", kMaxFeatures));
  WW_RETURN_IF_ERROR(CheckFeatures(manifest.read, "read this run"));
  WW_TRY(manifest.run, fields.AnId("run_id"));
  WW_TRY(manifest.single_writer, fields.Boolean("single_writer"));
  WW_TRY(manifest.write, fields.Texts("write_features", kMaxFeatures));
  return manifest;
}

Status CheckFeatures(const std::vector<std::string>& features, std::string_view to_do_what) {
  const auto unknown = std::ranges::find_if(features, [](const std::string& name) { return name != kPiecesFeature; });
  if (unknown == features.end()) return Ok();
  return Error(
      ErrorCode::kUnsupported,
      fmt::format("to {}, weightwire needs the feature {}, which this version does not know; update weightwire",
                  to_do_what, Quoted(*unknown)));
}

}  // namespace weightwire
