#include "log/record.h"

#include <fmt/format.h>

#include <utility>

#include "base/bytes.h"
#include "log/fields.h"
#include "log/limits.h"
#include "log/run_manifest.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

constexpr std::string_view kRecordFormat = "weightwire-record";

Result<PartRef> ParsePart(const JsonValue& fields, Version version) {
  WW_RETURN_IF_ERROR(fields.ExpectObject());
  PartRef part;
  WW_TRY(part.key, fields.Text("key"));
  WW_TRY(part.size_bytes, fields.Number("bytes"));
  WW_TRY(part.hash, fields.Hash("hash"));
  if (part.size_bytes > kMaxPartBytes) {
    return Error(ErrorCode::kLimit, fmt::format("a part has {} bytes, more than {}", part.size_bytes, kMaxPartBytes));
  }
  if (version == 0 || part.key != PartKey(version - 1, version, part.hash)) {
    return Corrupt(fmt::format("its part {} does not lie where a part of this version lies", Quoted(part.key)));
  }
  return part;
}

Result<std::optional<std::vector<PartRef>>> ParseDelta(const JsonValue& record, Version version) {
  WW_TRY(const JsonValue* delta, record.ObjectOrNull("delta"));
  if (delta == nullptr) return std::optional<std::vector<PartRef>>();
  WW_TRY(const auto* list, delta->List("parts", kMaxParts));
  std::vector<PartRef> parts;
  for (const JsonValue& value : *list) {
    WW_TRY(PartRef part, ParsePart(value, version));
    parts.push_back(std::move(part));
  }
  return std::optional(std::move(parts));
}

Result<std::optional<AnchorRef>> ParseAnchor(const JsonValue& record) {
  WW_TRY(const JsonValue* fields, record.ObjectOrNull("anchor"));
  if (fields == nullptr) return std::optional<AnchorRef>();
  AnchorRef anchor;
  WW_TRY(anchor.name.version, fields->Number("version"));
  WW_TRY(anchor.name.id, fields->AnId("id"));
  WW_TRY(anchor.bytes, fields->Number("bytes"));
  WW_TRY(anchor.manifest_hash, fields->Hash("manifest_hash"));
  return std::optional(anchor);
}

// What the fields of one record must be to each other.
Status CheckWhole(const Record& record) {
  if (record.version > kMaxVersion) return Corrupt("its version is too large");
  if ((record.version == 0) == record.parent.has_value()) return Corrupt("version 0, and no other, has no parent");
  if (record.version == 0 && record.delta.has_value()) return Corrupt("version 0 has a delta");
  if (record.chain > record.version || (record.chain == record.version) == record.delta.has_value()) {
    return Corrupt("its \"chain_start\" does not fit to its delta");
  }
  if (record.anchor.has_value() && record.anchor->name.version > record.version) {
    return Corrupt("it names an anchor of a later version");
  }
  if (!record.delta.has_value() && (!record.anchor.has_value() || record.anchor->name.version != record.version)) {
    return Corrupt("it has neither a delta nor an anchor of its own");
  }
  std::uint64_t own = 0;
  for (const PartRef& part : record.delta.value_or(std::vector<PartRef>())) {
    const auto sum = CheckedAdd(own, part.size_bytes);
    if (!sum.has_value()) return Corrupt("its parts have too many bytes");
    own = *sum;
  }
  if (record.version == 0 && record.delta_bytes != 0) return Corrupt("version 0 has \"total_delta_bytes\"");
  if (own > record.delta_bytes) return Corrupt("its \"total_delta_bytes\" is less than the bytes of its own parts");
  return Ok();
}

}  // namespace

std::uint64_t Record::OwnDeltaBytes() const {
  std::uint64_t bytes = 0;
  for (const PartRef& part : delta.value_or(std::vector<PartRef>())) bytes += part.size_bytes;
  return bytes;
}

std::string ToJson(const Record& record) {
  FieldsWriter fields;
  fields.Text("format", kRecordFormat).AnId("run_id", record.run).Number("version", record.version);
  fields.Hash("parent_hash", record.parent).Number("step", record.step).Text("time", record.time);
  fields.AnId("writer_id", record.writer).Hash("layout_hash", record.layout).Hash("digest", record.state);
  if (record.delta.has_value()) {
    std::vector<FieldsWriter> parts;
    for (const PartRef& part : *record.delta) {
      FieldsWriter& to = parts.emplace_back();
      to.Text("key", part.key).Number("bytes", part.size_bytes).Hash("hash", part.hash);
    }
    fields.Object("delta", FieldsWriter().Objects("parts", parts));
  } else {
    fields.Null("delta");
  }
  fields.Number("changed_elements", record.changed).Number("total_delta_bytes", record.delta_bytes);
  fields.Number("chain_start", record.chain);
  if (record.anchor.has_value()) {
    const AnchorRef& anchor = *record.anchor;
    FieldsWriter to;
    to.Number("version", anchor.name.version).AnId("id", anchor.name.id).Number("bytes", anchor.bytes);
    fields.Object("anchor", to.Hash("manifest_hash", anchor.manifest_hash));
  } else {
    fields.Null("anchor");
  }
  return fields.Texts("read_features", record.read).Finish();
}

Result<Record> ParseRecord(std::string_view json) {
  WW_TRY(const JsonValue fields, ParseFields(json, kMaxRecordBytes, kRecordFormat));
  Record record;
  // First of all: a version that needs more than we know may look different in everything else.
  WW_TRY(record.read, fields.Texts("read_features", kMaxFeatures));
  WW_RETURN_IF_ERROR(CheckFeatures(record.read, "read this version"));
  WW_TRY(record.run, fields.AnId("run_id"));
  WW_TRY(record.version, fields.Number("version"));
  WW_TRY(record.parent, fields.HashOrNull("parent_hash"));
  WW_TRY(record.step, fields.Number("step"));
  WW_TRY(record.time, fields.Time("time"));
  WW_TRY(record.writer, fields.AnId("writer_id"));
  WW_TRY(record.layout, fields.Hash("layout_hash"));
  WW_TRY(record.state, fields.Hash("digest"));
  WW_TRY(record.delta, ParseDelta(fields, record.version));
  WW_TRY(record.changed, fields.Number("changed_elements"));
  WW_TRY(record.delta_bytes, fields.Number("total_delta_bytes"));
  WW_TRY(record.chain, fields.Number("chain_start"));
  WW_TRY(record.anchor, ParseAnchor(fields));
  WW_RETURN_IF_ERROR(CheckWhole(record));
  return record;
}

}  // namespace weightwire
