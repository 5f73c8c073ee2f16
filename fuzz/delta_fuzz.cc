// The delta reader on arbitrary bytes. The first byte of an input says how the rest is taken:
//   0  as a file;
//   1  as the index (after its hash), the tables and the payload of a file, which is sealed with a fitting hash and
//      staged against a fixed base: so the inner parsers and the tile decoders are reached;
//   2  as a table set and the stream of one tile: decoded by every instruction set, which must agree;
//   3  as the stream of one tile of gaps mode: the same.
// What is accepted must keep its promises.
//
// WW_FUZZ_SEEDS=DIRECTORY makes the target write its seeds there first (fuzz/corpus/delta was made so).
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "base/check.h"
#include "codec/decode/decoder.h"
#include "codec/decode/dense_tile.h"
#include "codec/encode/encoder.h"
#include "codec/format/gap_tile.h"
#include "support/safetensors_file.h"
#include "tensor/safetensors.h"

namespace weightwire {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Random = std::mt19937_64;

struct Model {
  std::shared_ptr<const Layout> layout;
  std::vector<Bytes> tensors;
};

ThreadPool& OneThread() {
  static ThreadPool pool(1);
  return pool;
}

std::vector<Digest> DigestsOf(const Model& model) {
  const std::vector<std::span<const std::uint8_t>> spans(model.tensors.begin(), model.tensors.end());
  return DigestTensors(spans, *ScalarKernels(), OneThread());
}

const Model& FixedBase() {
  static const Model kBase = [] {
    Random random(1);
    const std::vector<TensorSpec> specs = {{"a", DType::kBF16, {30, 20}}, {"b", DType::kF32, {40}},
                                           {"c", DType::kU8, {300}},      {"d", DType::kF4, {4, 8}},
                                           {"e", DType::kF64, {}},        {"f", DType::kI16, {0}}};
    Model model;
    model.layout = std::make_shared<const Layout>(Layout::Make(specs, {{"tied", "a"}}).value());
    for (std::size_t i = 0; i < model.layout->size(); ++i) {
      Bytes bytes(model.layout->byte_size(i));
      for (std::size_t b = 0; b < bytes.size(); ++b) {
        bytes[b] = static_cast<std::uint8_t>(b % 2 == 1 ? 0x3d - random() % 3 : random());
      }
      model.tensors.push_back(std::move(bytes));
    }
    return model;
  }();
  return kBase;
}

const StateView& FixedView() {
  static const StateView kView(FixedBase().layout, {FixedBase().tensors.begin(), FixedBase().tensors.end()},
                               DigestsOf(FixedBase()));
  return kView;
}

Bytes Sealed(std::span<const std::uint8_t> index, std::span<const std::uint8_t> tables,
             std::span<const std::uint8_t> payload) {
  Bytes hashed(sizeof(Sha256Digest));
  hashed.insert(hashed.end(), index.begin(), index.end());
  const auto view = [](const char* name, std::span<const std::uint8_t> bytes) {
    return TensorView{{name, DType::kU8, {bytes.size()}}, bytes};
  };
  Bytes file = testing::WriteSafetensors(std::vector<TensorView>{view(kIndexEntry, hashed), view(kTablesEntry, tables),
                                                                 view(kPayloadEntry, payload)},
                                         {{"format", kDeltaFormatName}, {"version", kDeltaFormatVersion}})
                   .value();
  const std::size_t at = 8 + LoadU64(file.data());
  Sha256 hash;
  hash.Update(std::span(file).first(at));
  hash.Update(std::span(file).subspan(at + sizeof(Sha256Digest)));
  const Sha256Digest digest = hash.Finish();
  std::copy(digest.begin(), digest.end(), file.begin() + static_cast<std::ptrdiff_t>(at));
  return file;
}

// Refused, or a change that leads to what it says, by every instruction set.
void CheckStaging(const Bytes& bytes) {
  const auto file = DeltaFile::Parse(bytes);
  if (!file.ok()) return;
  std::optional<bool> accepted;
  for (const Kernels* kernels : AllKernels()) {
    const auto change = StageDelta(file.value(), FixedView(), *kernels, OneThread());
    WW_CHECK(!accepted.has_value() || *accepted == change.ok());
    accepted = change.ok();
    if (!change.ok()) continue;
    const StagedChange& staged = *change.value();
    Model after;
    after.layout = std::make_shared<const Layout>(staged.layout_after());
    for (std::size_t i = 0; i < after.layout->size(); ++i) {
      const auto origin = staged.Origin(i);
      const StagedTensor* tensor = staged.Find(i);
      WW_CHECK(origin.has_value() || tensor != nullptr);  // a part that leaves a new tensor to another is refused
      after.tensors.push_back(origin.has_value() ? FixedBase().tensors[*origin] : Bytes(after.layout->byte_size(i)));
      if (tensor == nullptr) continue;
      tensor->Write(after.tensors.back());
      if (tensor->is_new()) continue;
      Bytes undone = after.tensors.back();
      tensor->Undo(undone);
      WW_CHECK(undone == FixedBase().tensors[*origin]);
    }
    WW_CHECK(DigestsOf(after) == staged.digests_after());
  }
}

void CheckTile(std::span<const std::uint8_t> input) {
  if (input.size() < 3) return;
  const int width = 1 << (input[0] & 3);
  const std::uint32_t count = 1 + input[1];
  const int scale = input[2] == 0 ? 0 : input[2] - kScaleBias;
  ByteReader reader(input.subspan(3));
  auto set = TableSet::Read(reader);
  if (!set.ok()) return;
  set.value().unit_bits = 8 * width;
  if (!set.value().CheckFits().ok()) return;
  const Bytes stream(input.begin() + 3 + static_cast<std::ptrdiff_t>(reader.position()), input.end());
  const ExpandedTables tables(set.value(), scale);
  Random random(2);
  Bytes base(count * static_cast<std::size_t>(width));
  for (std::uint8_t& byte : base) byte = static_cast<std::uint8_t>(random() % 3 == 0 ? random() : 0x3c);
  if (set.value().dense) {
    Bytes units(base.size());
    DecodeDenseTile(stream, base.data(), count, width, tables, units.data());
    return;
  }
  std::optional<std::vector<std::uint32_t>> positions;
  std::optional<Bytes> units;
  for (const Kernels* kernels : AllKernels()) {
    Bytes changes(count * RecordBytes(width));
    SparseTile tile;
    tile.base = base.data();
    tile.unit_count = count;
    tile.stream = stream;
    tile.tables = &tables;
    tile.max_changed = count;
    tile.changes = changes.data();
    std::vector<std::uint32_t> times(TimesRoom(count));
    kernels->decode_sparse({&tile, 1}, width, times.data());
    std::vector<std::uint32_t> found;
    Bytes fresh;
    WithUnit(width, [&]<typename Unit>() {
      for (std::uint32_t k = 0; tile.intact && k < tile.changed; ++k) {
        const TileChange<Unit> change = LoadChange<Unit>(changes.data(), k);
        WW_CHECK(change.position < count && (found.empty() || found.back() < change.position));
        WW_CHECK(change.old_unit == LoadUnit<Unit>(base.data(), change.position));
        found.push_back(change.position);
        fresh.resize(fresh.size() + sizeof(Unit));
        StoreUnit<Unit>(fresh.data(), k, change.new_unit);
      }
    });
    WW_CHECK(!positions.has_value() || *positions == found);
    WW_CHECK(!units.has_value() || *units == fresh);
    positions = std::move(found);
    units = std::move(fresh);
  }
}

void CheckGapTile(std::span<const std::uint8_t> input) {
  if (input.size() < 3) return;
  const int width = 1 << (input[0] & 3);
  const auto size = static_cast<std::size_t>(width);
  const std::uint32_t begin = input[0] >> 2;
  const std::uint32_t end = begin + 1 + LoadU16(input.data() + 1);
  const Bytes stream(input.begin() + 3, input.end());
  const auto opened = OpenGapStream(stream, end - begin);
  if (!opened.has_value()) return;
  WW_CHECK(opened->changed <= end - begin && opened->changed <= stream.size());
  Random random(3);
  Bytes base(end * size);
  for (std::uint8_t& byte : base) byte = static_cast<std::uint8_t>(random() % 3 == 0 ? random() : 0x3c);
  std::optional<bool> intact;
  std::vector<std::uint32_t> positions;
  Bytes new_units;
  for (const Kernels* kernels : AllKernels()) {
    std::vector<std::uint32_t> found(opened->changed);
    Bytes fresh(opened->changed * size);
    Bytes stale(opened->changed * size);
    GapTile tile;
    tile.stream = *opened;
    tile.base = base.data();
    tile.begin = begin;
    tile.end = end;
    tile.positions = found.data();
    tile.new_units = fresh.data();
    tile.old_units = stale.data();
    kernels->decode_gaps({&tile, 1}, width);
    WW_CHECK(!intact.has_value() || *intact == tile.intact);
    if (!tile.intact) {
      intact = false;
      continue;
    }
    WW_CHECK(!intact.has_value() || (positions == found && new_units == fresh));
    WW_CHECK(std::adjacent_find(found.begin(), found.end(), std::greater_equal<>()) == found.end());
    WW_CHECK(found.empty() || (found.front() >= begin && found.back() < end));
    // What was decoded, encoded again, is the same stream: there is only one.
    for (std::uint32_t& position : found) position -= begin;
    Bytes again;
    AppendGapStream({found, stale.data(), fresh.data()}, width, again);
    const auto reopened = OpenGapStream(again, end - begin);
    WW_CHECK(reopened.has_value() && (reopened->wide != opened->wide || again == stream));
    for (std::uint32_t& position : found) position += begin;
    intact = true;
    positions = std::move(found);
    new_units = std::move(fresh);
  }
}

// --- seeds ---

void WriteSeed(const std::string& directory, const std::string& name, const Bytes& bytes) {
  std::ofstream(directory + "/" + name, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

Bytes StructuredSeed(std::span<const std::uint8_t> file) {
  const auto view = SafetensorsView::Parse(file);
  const auto index = view.value().Find(kIndexEntry)->bytes.subspan(sizeof(Sha256Digest));
  const auto tables = view.value().Find(kTablesEntry)->bytes;
  const auto payload = view.value().Find(kPayloadEntry)->bytes;
  Bytes seed = {1};
  ByteWriter writer(seed);
  writer.U16(static_cast<std::uint16_t>(index.size()));
  writer.U16(static_cast<std::uint16_t>(tables.size()));
  writer.Bytes(index);
  writer.Bytes(tables);
  writer.Bytes(payload);
  return seed;
}

void WriteSeeds(const std::string& directory) {
  const Model& base = FixedBase();
  const std::vector<Digest> digests = DigestsOf(base);
  constexpr std::pair<CodingRequest, const char*> kModes[] = {
      {CodingRequest::kSmallest, "smallest"}, {CodingRequest::kConditioned, "conditioned"},
      {CodingRequest::kUniform, "uniform"},   {CodingRequest::kGaps, "gaps"},
      {CodingRequest::kDense, "dense"},       {CodingRequest::kWhole, "whole"}};
  for (const auto& [mode, name] : kModes) {
    Random random(7);
    Model after = base;
    for (Bytes& tensor : after.tensors) {
      for (std::uint8_t& byte : tensor) byte ^= random() % 20 == 0 ? 1 : 0;
    }
    EncodeRequest request;
    request.coding = mode;
    request.layout_before = request.layout_after = base.layout.get();
    for (std::size_t i = 0; i < base.layout->size(); ++i) {
      EncodeEntry entry;
      entry.tensor = i;
      entry.old_bytes = base.tensors[i];
      entry.new_bytes = after.tensors[i];
      entry.before = digests[i];
      request.entries.push_back(entry);
    }
    const Bytes part = EncodeDelta(request, *ScalarKernels(), OneThread()).value().file;
    WriteSeed(directory, std::string(name) + "_part", StructuredSeed(part));
    request.digests_before = digests;
    Bytes file = EncodeDelta(request, *ScalarKernels(), OneThread()).value().file;
    WriteSeed(directory, name, StructuredSeed(file));
    if (mode == CodingRequest::kSmallest) {
      file.insert(file.begin(), 0);
      WriteSeed(directory, "file", file);
    }
    // A tile of its own: the first of the first set.
    const auto parsed = DeltaFile::Parse(part);
    if (mode == CodingRequest::kGaps) {
      Bytes tile = {3, 1, 0x57, 2};
      ByteWriter(tile).Bytes(parsed.value().payload(0));
      WriteSeed(directory, "gaps_tile", tile);
    }
    if (parsed.value().sets().empty()) continue;
    Bytes tile = {2, 1, 255, 0};
    ByteWriter writer(tile);
    parsed.value().sets()[0].Write(writer);
    writer.Bytes(parsed.value().payload(0));
    WriteSeed(directory, std::string(name) + "_tile", tile);
  }
  // Two boxes, a tensor removed, one added.
  std::vector<TensorSpec> specs = base.layout->tensors();
  specs.erase(specs.begin() + 1);
  specs.push_back({"new", DType::kU8, {5}});
  const Layout after = Layout::Make(specs, {}).value();
  const Bytes fresh = {1, 2, 3, 4, 5};
  Bytes changed = base.tensors[0];
  for (std::size_t i = 0; i < changed.size(); i += 50) changed[i] ^= 3;
  EncodeRequest request;
  request.layout_before = base.layout.get();
  request.layout_after = &after;
  for (const std::uint64_t row : {0, 15}) {
    EncodeEntry entry;
    entry.box = Box{{row, 0}, {15, 20}};
    const std::size_t from = row * 40;
    entry.old_bytes = std::span(base.tensors[0]).subspan(from, 600);
    entry.new_bytes = std::span(changed).subspan(from, 600);
    entry.before = DigestOfRange(entry.old_bytes, from, *ScalarKernels());
    request.entries.push_back(entry);
  }
  EncodeEntry added;
  added.tensor = after.Find("new").value();
  added.has_old = false;
  added.new_bytes = fresh;
  request.entries.push_back(added);
  request.digests_before = digests;
  WriteSeed(directory, "boxes_and_layout",
            StructuredSeed(EncodeDelta(request, *ScalarKernels(), OneThread()).value().file));
}

}  // namespace
}  // namespace weightwire

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (const char* directory = std::getenv("WW_FUZZ_SEEDS")) weightwire::WriteSeeds(directory);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weightwire;
  if (size == 0) return 0;
  const std::span<const std::uint8_t> input(data + 1, size - 1);
  switch (data[0]) {
    case 0:
      CheckStaging(Bytes(input.begin(), input.end()));
      break;
    case 1: {
      if (input.size() < 4) break;
      const std::size_t index = std::min<std::size_t>(LoadU16(input.data()), input.size() - 4);
      const std::size_t tables = std::min<std::size_t>(LoadU16(input.data() + 2), input.size() - 4 - index);
      CheckStaging(
          Sealed(input.subspan(4, index), input.subspan(4 + index, tables), input.subspan(4 + index + tables)));
      break;
    }
    case 2:
      CheckTile(input);
      break;
    case 3:
      CheckGapTile(input);
      break;
    default:
      break;
  }
  return 0;
}
