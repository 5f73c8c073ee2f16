#include "tensor/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/limits.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kHeaderAlignment = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

struct HeaderEntry {
  TensorSpec spec;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// Receives the header's JSON events and accepts only the shape of a header. Depth 1 holds names, depth 2 the fields of
// a tensor or the metadata's strings, depth 3 the numbers of a field.
class HeaderReader {
 public:
  Status On(JsonEvent& event) {
    switch (event.depth) {
      case 0:
        return Ok();  // Parse has seen the '{'
      case 1:
        return OnTop(event);
      case 2:
        return in_metadata_ ? OnMetadata(event) : OnField(event);
      default:
        return OnNumber(event);  // depth 3: no level above lets a container open there
    }
  }

  std::vector<HeaderEntry> entries;
  Metadata metadata;

 private:
  enum class Field : std::uint8_t { kNone, kDType, kShape, kOffsets };
  using Kind = JsonEvent::Kind;

  Status OnTop(JsonEvent& event) {
    if (event.kind == Kind::kKey) return OnName(event);
    if (event.kind == Kind::kStartObject) return Ok();
    if (event.kind == Kind::kEndObject) return in_metadata_ ? Ok() : FinishTensor();
    if (event.kind == Kind::kNull && in_metadata_) return Ok();
    return Corrupt(fmt::format("the header's entry {} is not an object", Quoted(name_)));
  }

  Status OnName(JsonEvent& event) {
    name_ = std::move(event.text);
    in_metadata_ = name_ == kMetadataKey;
    if (in_metadata_) {
      if (seen_metadata_) return Corrupt("the header has \"__metadata__\" twice");
      seen_metadata_ = true;
      return Ok();
    }
    WW_RETURN_IF_ERROR(CheckName(name_));
    if (entries.size() == kMaxTensors) {
      return Error(ErrorCode::kLimit, fmt::format("the header has more than {} tensors", kMaxTensors));
    }
    entries.push_back({.spec = {.name = name_, .dtype = {}, .shape = {}}});
    seen_dtype_ = seen_shape_ = seen_offsets_ = false;
    return Ok();
  }

  Status OnMetadata(JsonEvent& event) {
    if (event.kind == Kind::kKey) {
      key_ = std::move(event.text);
      if (metadata.size() == kMaxMetadataEntries) {
        return Error(ErrorCode::kLimit, fmt::format("the metadata has more than {} entries", kMaxMetadataEntries));
      }
      return Ok();
    }
    if (event.kind != Kind::kString) return Corrupt(fmt::format("the metadata's {} is not a string", Quoted(key_)));
    if (!metadata.emplace(key_, std::move(event.text)).second) {
      return Corrupt(fmt::format("the metadata has {} twice", Quoted(key_)));
    }
    return Ok();
  }

  Status OnField(JsonEvent& event) {
    if (event.kind == Kind::kKey) return OnFieldName(event.text);
    if (field_ == Field::kDType) {
      if (event.kind != Kind::kString) return InTensor("its dtype is not a string");
      const auto dtype = DTypeNamed(event.text);
      if (!dtype) {
        return Error(ErrorCode::kUnsupported,
                     fmt::format("tensor {}: unknown dtype {}", Quoted(name_), Quoted(event.text)));
      }
      entries.back().spec.dtype = *dtype;
      return Ok();
    }
    if (event.kind == Kind::kStartArray) return Ok();
    if (event.kind != Kind::kEndArray) return InTensor("its shape and data_offsets must be lists of numbers");
    if (field_ == Field::kOffsets && offsets_read_ != 2) return InTensor("its data_offsets are not two numbers");
    return Ok();
  }

  Status OnFieldName(std::string_view name) {
    bool* seen = nullptr;
    if (name == "dtype") {
      field_ = Field::kDType;
      seen = &seen_dtype_;
    } else if (name == "shape") {
      field_ = Field::kShape;
      seen = &seen_shape_;
    } else if (name == "data_offsets") {
      field_ = Field::kOffsets;
      seen = &seen_offsets_;
      offsets_read_ = 0;
    } else {
      return InTensor(fmt::format("unknown field {}", Quoted(name)));
    }
    if (*seen) return InTensor(fmt::format("it has {} twice", Quoted(name)));
    *seen = true;
    return Ok();
  }

  Status OnNumber(JsonEvent& event) {
    if (event.kind != Kind::kUnsigned) {
      return InTensor("its shape and data_offsets must be lists of whole numbers from 0 to 2^64-1");
    }
    HeaderEntry& entry = entries.back();
    if (field_ == Field::kShape) {
      if (entry.spec.shape.size() == kMaxRank) {
        return Error(ErrorCode::kLimit, fmt::format("tensor {} has more than {} dimensions", Quoted(name_), kMaxRank));
      }
      entry.spec.shape.push_back(event.number);
      return Ok();
    }
    if (offsets_read_ == 2) return InTensor("its data_offsets are not two numbers");
    (offsets_read_ == 0 ? entry.begin : entry.end) = event.number;
    ++offsets_read_;
    return Ok();
  }

  Status FinishTensor() {
    if (!seen_dtype_) return InTensor("it has no dtype");
    if (!seen_shape_) return InTensor("it has no shape");
    if (!seen_offsets_) return InTensor("it has no data_offsets");
    return Ok();
  }

  [[nodiscard]] Error InTensor(const std::string& what) const {
    return Corrupt(fmt::format("tensor {}: {}", Quoted(name_), what));
  }

  std::string name_;  // of the entry being read
  std::string key_;   // of the metadata being read
  bool in_metadata_ = false;
  bool seen_metadata_ = false;
  Field field_ = Field::kNone;
  bool seen_dtype_ = false;
  bool seen_shape_ = false;
  bool seen_offsets_ = false;
  int offsets_read_ = 0;
};

Status CheckCoverage(const std::vector<HeaderEntry>& entries, std::uint64_t data_size) {
  std::uint64_t covered = 0;
  for (const HeaderEntry& entry : entries) {
    const std::string name = "tensor " + Quoted(entry.spec.name);
    if (entry.begin != covered) {
      return Corrupt(fmt::format("{}: its data begins at {}, which leaves {} after the tensor before, which ends at {}",
                                 name, entry.begin, entry.begin > covered ? "a hole" : "an overlap", covered));
    }
    WW_TRY(const std::uint64_t size, CheckedByteSize(entry.spec));
    if (entry.end < entry.begin || entry.end - entry.begin != size) {
      return Corrupt(fmt::format("{}: its data_offsets are [{}, {}], but {} takes {} bytes", name, entry.begin,
                                 entry.end, Describe(entry.spec), size));
    }
    covered = entry.end;
  }
  if (covered != data_size) {
    return Corrupt(fmt::format("the tensors take {} bytes, but {} follow the header; the file is {}", covered,
                               data_size, covered > data_size ? "cut off" : "too long"));
  }
  return Ok();
}

Result<std::uint64_t> TotalBytes(std::span<const TensorSpec> specs) {
  std::uint64_t total = 0;
  for (const TensorSpec& spec : specs) {
    WW_TRY(const std::uint64_t size, CheckedByteSize(spec));
    const auto sum = CheckedAdd(total, size);
    if (!sum) return Error(ErrorCode::kLimit, "the tensors of one file take 2^64 bytes or more");
    total = *sum;
  }
  return total;
}

}  // namespace

Result<SafetensorsView> SafetensorsView::Parse(std::span<const std::uint8_t> file) {
  if (file.size() < kLengthBytes) {
    return Corrupt(fmt::format("not a safetensors file: {} bytes are too few for the header's length", file.size()));
  }
  const std::uint64_t header_size = LoadU64(file.data());
  if (header_size > kMaxHeaderBytes && header_size > file.size()) {
    return Corrupt("not a safetensors file, or damaged: it does not begin with the length of its header");
  }
  if (header_size > kMaxHeaderBytes) {
    return Error(ErrorCode::kLimit, fmt::format("not a safetensors file, or damaged: a header of {} bytes is above the "
                                                "format's limit of {}",
                                                header_size, kMaxHeaderBytes));
  }
  if (header_size > file.size() - kLengthBytes) {
    return Corrupt(fmt::format("the header should have {} bytes, but only {} follow; the file is cut off", header_size,
                               file.size() - kLengthBytes));
  }
  const auto header_bytes = file.subspan(kLengthBytes, header_size);
  const auto data = file.subspan(kLengthBytes + header_size);
  if (header_bytes.empty() || header_bytes[0] != '{') {
    return Corrupt("not a safetensors file: the header does not begin with '{'");
  }

  HeaderReader header;
  const Status read = ReadJson(TextOf(header_bytes), [&](JsonEvent& event) { return header.On(event); });
  if (!read.ok()) return read.error().In("the header is damaged");

  // Stable: empty tensors at the same offset keep the header's order, so that a copy of the file is the same file.
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  WW_RETURN_IF_ERROR(CheckCoverage(header.entries, data.size()));

  SafetensorsView view;
  view.metadata_ = std::move(header.metadata);
  view.tensors_.reserve(header.entries.size());
  for (HeaderEntry& entry : header.entries) {
    view.tensors_.push_back({std::move(entry.spec), data.subspan(entry.begin, entry.end - entry.begin)});
  }
  view.by_name_.resize(view.tensors_.size());
  std::iota(view.by_name_.begin(), view.by_name_.end(), std::size_t{0});
  const auto name = [&](std::size_t index) -> const std::string& { return view.tensors_[index].spec.name; };
  std::sort(view.by_name_.begin(), view.by_name_.end(),
            [&](std::size_t a, std::size_t b) { return name(a) < name(b); });
  const auto twice = std::adjacent_find(view.by_name_.begin(), view.by_name_.end(),
                                        [&](std::size_t a, std::size_t b) { return name(a) == name(b); });
  if (twice != view.by_name_.end()) return Corrupt(fmt::format("the header has tensor {} twice", Quoted(name(*twice))));
  return view;
}

const TensorView* SafetensorsView::Find(std::string_view name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name, [&](std::size_t index, std::string_view n) {
    return tensors_[index].spec.name < n;
  });
  if (at == by_name_.end() || tensors_[*at].spec.name != name) return nullptr;
  return &tensors_[*at];
}

void SortForFile(std::vector<TensorSpec>& specs) {
  std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
}

Result<std::vector<std::uint8_t>> SafetensorsHeader(std::span<const TensorSpec> specs, const Metadata& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (json.back() != '{') json += ',';
      AppendJsonString(json, key);
      json += ':';
      AppendJsonString(json, value);
    }
    json += '}';
  }
  WW_RETURN_IF_ERROR(TotalBytes(specs));
  std::uint64_t offset = 0;
  for (const TensorSpec& spec : specs) {
    const std::uint64_t size = CheckedByteSize(spec).value();
    if (json.size() > 1) json += ',';
    AppendJsonString(json, spec.name);
    fmt::format_to(std::back_inserter(json), R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                   NameOf(spec.dtype), fmt::join(spec.shape, ","), offset, offset + size);
    offset += size;
  }
  json += '}';
  json.resize((json.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  if (json.size() > kMaxHeaderBytes) {
    return Error(ErrorCode::kLimit, fmt::format("a safetensors header of {} bytes is above the format's limit of {}; "
                                                "use more files with fewer tensors each",
                                                json.size(), kMaxHeaderBytes));
  }
  std::vector<std::uint8_t> header;
  header.reserve(kLengthBytes + json.size());
  ByteWriter writer(header);
  writer.U64(json.size());
  writer.Bytes(BytesOf(json));
  return header;
}

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::filesystem::path& path,
                                                    std::span<const TensorSpec> specs, const Metadata& metadata) {
  WW_TRY(const std::vector<std::uint8_t> header, SafetensorsHeader(specs, metadata));
  WW_TRY(const std::uint64_t data_size, TotalBytes(specs));
  const auto end = CheckedAdd(header.size(), data_size);
  if (!end) return Error(ErrorCode::kLimit, "the tensors of one file take 2^64 bytes or more");
  WW_TRY(File file, File::Create(path));
  WW_RETURN_IF_ERROR(file.WriteAt(0, header));
  return SafetensorsWriter(std::move(file), header.size(), *end);
}

Status SafetensorsWriter::Append(std::span<const std::uint8_t> bytes) {
  if (bytes.size() > end_ - position_) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("cannot write {}: more data than its tensors take ({} bytes)",
                                                          file_.path().string(), end_ - data_begin_));
  }
  WW_RETURN_IF_ERROR(file_.WriteAt(position_, bytes));
  position_ += bytes.size();
  return Ok();
}

Status SafetensorsWriter::Finish() {
  if (position_ != end_) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("cannot write {}: {} of {} bytes of tensor data are missing",
                                                          file_.path().string(), end_ - position_, end_ - data_begin_));
  }
  return file_.Sync();
}

}  // namespace weightwire
