#include "tensor/shard_index.h"

#include <fmt/format.h>

#include <utility>

#include "base/limits.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\\') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

class IndexReader {
 public:
  Status On(JsonEvent& event) {
    if (event.depth == 0) {
      const bool object = event.kind == Kind::kStartObject || event.kind == Kind::kEndObject;
      return object ? Ok() : Corrupt("it is not an object");
    }
    if (event.depth == 1) {
      if (event.kind == Kind::kKey) {
        in_map_ = event.text == "weight_map";
        if (in_map_ && seen_map) return Corrupt("it has \"weight_map\" twice");
        seen_map = seen_map || in_map_;
        return Ok();
      }
      const bool object = event.kind == Kind::kStartObject || event.kind == Kind::kEndObject;
      return object || !in_map_ ? Ok() : Corrupt("its \"weight_map\" is not an object");
    }
    return in_map_ ? OnEntry(event) : Ok();
  }

  WeightMap map;
  bool seen_map = false;

 private:
  using Kind = JsonEvent::Kind;

  Status OnEntry(JsonEvent& event) {
    if (event.kind == Kind::kKey) {
      tensor_ = std::move(event.text);
      if (map.size() == kMaxTensors) {
        return Error(ErrorCode::kLimit, fmt::format("it names more than {} tensors", kMaxTensors));
      }
      return Ok();
    }
    if (event.kind != Kind::kString) return Corrupt(fmt::format("the file of {} is not a string", Quoted(tensor_)));
    if (!IsPlainFileName(event.text)) {
      return Corrupt(
          fmt::format("the file of {} is {}, which is not a plain file name", Quoted(tensor_), Quoted(event.text)));
    }
    if (!map.emplace(tensor_, std::move(event.text)).second) {
      return Corrupt(fmt::format("it has tensor {} twice", Quoted(tensor_)));
    }
    return Ok();
  }

  std::string tensor_;
  bool in_map_ = false;
};

}  // namespace

Result<WeightMap> ParseShardIndex(std::string_view json) {
  if (json.size() > kMaxIndexBytes) {
    return Error(ErrorCode::kLimit, fmt::format("{} bytes are above the limit of {}", json.size(), kMaxIndexBytes));
  }
  IndexReader reader;
  WW_RETURN_IF_ERROR(ReadJson(json, [&](JsonEvent& event) { return reader.On(event); }));
  if (!reader.seen_map) return Corrupt("it has no \"weight_map\"");
  return std::move(reader.map);
}

std::string ShardIndexText(const WeightMap& weight_map, std::uint64_t total_bytes) {
  std::string text =
      fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total_bytes);
  const char* separator = "\n    ";
  for (const auto& [tensor, file] : weight_map) {
    text += separator;
    AppendJsonString(text, tensor);
    text += ": ";
    AppendJsonString(text, file);
    separator = ",\n    ";
  }
  return text + "\n  }\n}\n";
}

}  // namespace weightwire
