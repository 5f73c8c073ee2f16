#include "tensor/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/limits.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

// Receives the events of a layout's JSON. Loose about white space and order: Parse compares with the canonical text
// afterwards, which settles both.
class LayoutReader {
 public:
  Status On(JsonEvent& event) {
    if (event.kind == Kind::kKey) return OnKey(event);
    const bool container = event.kind == Kind::kStartObject || event.kind == Kind::kEndObject ||
                           event.kind == Kind::kStartArray || event.kind == Kind::kEndArray;
    switch (event.depth) {
      case 0:
      case 1:
        return container ? Ok() : Malformed();
      case 2:
        return section_ == Section::kAliases ? OnAliasTarget(event) : OnTensorEdge(event);
      case 3:
        return section_ == Section::kTensors ? OnTensorPart(event) : Malformed();
      case 4:
        return OnExtent(event);
      default:
        return Malformed();
    }
  }

  std::vector<TensorSpec> tensors;
  Aliases aliases;

 private:
  enum class Section : std::uint8_t { kNone, kAliases, kTensors };
  using Kind = JsonEvent::Kind;

  static Error Malformed() { return {ErrorCode::kCorrupt, "it is not of the form of a layout"}; }

  Status OnKey(JsonEvent& event) {
    if (event.depth == 1 && event.text == "aliases") {
      section_ = Section::kAliases;
    } else if (event.depth == 1 && event.text == "tensors") {
      section_ = Section::kTensors;
    } else if (event.depth == 2 && section_ == Section::kAliases) {
      alias_ = std::move(event.text);
    } else {
      return Malformed();
    }
    return Ok();
  }

  Status OnAliasTarget(JsonEvent& event) {
    if (event.kind != Kind::kString || aliases.size() == kMaxTensors) return Malformed();
    aliases.insert_or_assign(alias_, std::move(event.text));
    return Ok();
  }

  Status OnTensorEdge(const JsonEvent& event) {
    if (event.kind == Kind::kEndArray) return parts_ == 3 ? Ok() : Malformed();
    if (section_ != Section::kTensors || event.kind != Kind::kStartArray || tensors.size() == kMaxTensors) {
      return Malformed();
    }
    tensors.emplace_back();
    parts_ = 0;
    return Ok();
  }

  Status OnTensorPart(JsonEvent& event) {
    if (parts_ == 0 && event.kind == Kind::kString) {
      tensors.back().name = std::move(event.text);
    } else if (parts_ == 1 && event.kind == Kind::kString) {
      const auto dtype = DTypeNamed(event.text);
      if (!dtype) return Error(ErrorCode::kUnsupported, fmt::format("it has the unknown dtype {}", Quoted(event.text)));
      tensors.back().dtype = *dtype;
    } else if (parts_ == 2 && event.kind == Kind::kStartArray) {
      return Ok();
    } else if (parts_ != 2 || event.kind != Kind::kEndArray) {
      return Malformed();
    }
    ++parts_;
    return Ok();
  }

  Status OnExtent(const JsonEvent& event) {
    if (event.kind != Kind::kUnsigned || tensors.back().shape.size() == kMaxRank) return Malformed();
    tensors.back().shape.push_back(event.number);
    return Ok();
  }

  Section section_ = Section::kNone;
  std::string alias_;
  int parts_ = 0;
};

}  // namespace

Layout::Layout() : hash_(Sha256Of(CanonicalJson())) {}

Result<Layout> Layout::Make(std::vector<TensorSpec> tensors, Aliases aliases) {
  if (tensors.size() + aliases.size() > kMaxTensors) {
    return Error(ErrorCode::kLimit, fmt::format("a model of {} tensors and aliases is above the limit of {}",
                                                tensors.size() + aliases.size(), kMaxTensors));
  }
  Layout layout;
  layout.tensors_ = std::move(tensors);
  layout.aliases_ = std::move(aliases);
  std::sort(layout.tensors_.begin(), layout.tensors_.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  layout.byte_sizes_.reserve(layout.size());
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const TensorSpec& spec = layout.tensors_[i];
    if (i > 0 && layout.tensors_[i - 1].name == spec.name) {
      return Error(ErrorCode::kCorrupt, fmt::format("the model has tensor {} twice", Quoted(spec.name)));
    }
    WW_TRY(const std::uint64_t size, CheckedByteSize(spec));
    const auto total = CheckedAdd(layout.total_bytes_, size);
    if (!total) return Error(ErrorCode::kLimit, "the model has 2^64 bytes or more");
    layout.total_bytes_ = *total;
    layout.byte_sizes_.push_back(size);
  }
  for (const auto& [alias, kept] : layout.aliases_) {
    WW_RETURN_IF_ERROR(CheckName(alias));
    if (layout.Find(alias)) {
      return Error(ErrorCode::kCorrupt, fmt::format("{} is both a tensor and an alias", Quoted(alias)));
    }
    if (!layout.Find(kept)) {
      return Error(ErrorCode::kCorrupt,
                   fmt::format("the alias {} stands for {}, which is not a tensor", Quoted(alias), Quoted(kept)));
    }
  }
  layout.hash_ = Sha256Of(layout.CanonicalJson());
  return layout;
}

Result<Layout> Layout::Parse(std::string_view json) {
  if (json.size() > kMaxLayoutBytes) {
    return Error(ErrorCode::kLimit,
                 fmt::format("a layout of {} bytes is above the limit of {}", json.size(), kMaxLayoutBytes));
  }
  LayoutReader reader;
  const Status read = ReadJson(json, [&](JsonEvent& event) { return reader.On(event); });
  if (!read.ok()) return read.error().In("the layout is damaged");
  auto layout = Make(std::move(reader.tensors), std::move(reader.aliases));
  if (!layout.ok()) return layout.error().In("the layout is damaged");
  if (layout.value().CanonicalJson() != json) {
    return Error(ErrorCode::kCorrupt, "the layout is damaged: it is not in canonical form");
  }
  return layout;
}

std::optional<std::size_t> Layout::Find(std::string_view name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const TensorSpec& spec, std::string_view n) { return spec.name < n; });
  if (at == tensors_.end() || at->name != name) return std::nullopt;
  return static_cast<std::size_t>(at - tensors_.begin());
}

std::optional<std::size_t> Layout::FindSame(const TensorSpec& spec) const {
  const std::optional<std::size_t> index = Find(spec.name);
  return index.has_value() && tensors_[*index] == spec ? index : std::nullopt;
}

std::optional<std::size_t> Layout::Resolve(std::string_view name) const {
  const auto alias = aliases_.find(std::string(name));
  return Find(alias == aliases_.end() ? name : alias->second);
}

std::uint64_t Layout::element_count(std::size_t index) const { return ElementCount(tensors_[index].shape).value(); }

std::uint64_t Layout::unit_count(std::size_t index) const {
  return byte_sizes_[index] / static_cast<std::uint64_t>(UnitBytes(tensors_[index].dtype));
}

std::string Layout::CanonicalJson() const {
  std::string json = R"({"aliases":{)";
  for (const auto& [alias, kept] : aliases_) {
    if (json.back() != '{') json += ',';
    AppendJsonString(json, alias);
    json += ':';
    AppendJsonString(json, kept);
  }
  json += R"(},"tensors":[)";
  for (const TensorSpec& spec : tensors_) {
    if (json.back() != '[') json += ',';
    json += '[';
    AppendJsonString(json, spec.name);
    fmt::format_to(std::back_inserter(json), R"(,"{}",[{}]])", NameOf(spec.dtype), fmt::join(spec.shape, ","));
  }
  json += "]}";
  return json;
}

}  // namespace weightwire
