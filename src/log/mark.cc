#include "log/mark.h"

#include <fmt/format.h>

#include <algorithm>

#include "log/fields.h"
#include "log/keys.h"
#include "log/limits.h"
#include "store/key.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

constexpr std::string_view kMarkFormat = "weightwire-mark";

// A folder of parts, one part, or an anchor's folder.
bool MayBeMarked(std::string_view key) {
  if (const auto delta = DeltaOfKey(key); delta.has_value()) {
    const std::string folder = DeltaFolder(delta->from, delta->to);
    return key == folder || (CheckKey(key).ok() && key.find('/', folder.size()) == std::string_view::npos);
  }
  const auto anchor = AnchorOfKey(key);
  return anchor.has_value() && key == AnchorFolder(*anchor);
}

}  // namespace

bool Mark::Names(std::string_view key) const {
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& named) {
    return named.ends_with('/') ? key.starts_with(named) : key == named;
  });
}

std::string ToJson(const Mark& mark) {
  FieldsWriter fields;
  fields.Text("format", kMarkFormat).AnId("run_id", mark.run).AnId("id", mark.id).Texts("keys", mark.keys);
  return fields.Finish();
}

Result<Mark> ParseMark(std::string_view json) {
  WW_TRY(const JsonValue fields, ParseFields(json, kMaxMarkBytes, kMarkFormat));
  Mark mark;
  WW_TRY(mark.run, fields.AnId("run_id"));
  WW_TRY(mark.id, fields.AnId("id"));
  WW_TRY(mark.keys, fields.Texts("keys", kMaxMarkKeys));
  for (const std::string& key : mark.keys) {
    if (!MayBeMarked(key)) {
      return Error(ErrorCode::kCorrupt, fmt::format("it names {}, which is nothing that may be removed", Quoted(key)));
    }
  }
  return mark;
}

}  // namespace weightwire
