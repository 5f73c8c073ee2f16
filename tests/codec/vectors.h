// The golden files of spec/vectors, made in memory: tests/tools/make_vectors writes them, vectors_test.cc compares.
// Everything follows from fixed seeds, so that the same bytes come out everywhere.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "codec/bad_gap_vectors.h"
#include "codec/models.h"
#include "codec/open_file.h"
#include "codec/vector_parts.h"
#include "support/owned_tensor.h"
#include "support/safetensors_file.h"

namespace weightwire::testing {

// A delta that changes nothing, though it has an entry: two dense tiles whose only symbol is "stays as it is".
inline Model StillModel() { return ModelOf({{{"t", DType::kU8, {300}}, Bytes(300, 7)}}); }
inline Bytes StillDelta(std::vector<std::uint32_t> tiles, Bytes payload) {
  const Model model = StillModel();
  FileContents contents = ContentsOf(DeltaBetween(model, model));
  IndexEntry entry;
  entry.mode = EntryMode::kDense;
  entry.tile_log2 = 8;
  entry.tile_bytes = std::move(tiles);
  entry.before = entry.after = DigestsOf(model)[0];
  contents.index.entries = {entry};
  TableSet set;
  set.unit_bits = 8;
  set.dense = true;
  set.symbols[0].codes = {1};
  contents.sets = {set};
  contents.payload = std::move(payload);
  return FileOf(contents);
}

// --- good ones ---

class GoodVectors {
 public:
  std::vector<GoodVector> Make() {
    Types();
    Modes();
    Edges();
    Gaps();
    Boxes();
    Layouts();
    Ties();
    return std::move(vectors_);
  }

 private:
  using Tensors = std::vector<OwnedTensor>;

  static OwnedTensor Tensor(std::string name, DType dtype, std::vector<std::uint64_t> shape,
                            const std::function<void(std::span<std::uint8_t>)>& fill) {
    TensorSpec spec{std::move(name), dtype, std::move(shape)};
    Bytes bytes(CheckedByteSize(spec).value());
    fill(bytes);
    return {std::move(spec), std::move(bytes)};
  }

  // Weights of any type: units near one another, with all signs and some noise.
  static void Weights(Random& random, int width, std::span<std::uint8_t> bytes) {
    const auto step = static_cast<std::size_t>(width);
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      const int down = static_cast<int>(Below(random, 6));
      const std::uint64_t top = std::uint64_t{0x3d} << (8 * width - 8);
      const std::uint64_t unit = (top - (random() >> (64 - 8 * width + 2 + down))) | (random() & 1) << (8 * width - 1);
      std::memcpy(bytes.data() + at, &unit, step);
    }
  }

  // One in `one_in` units moves: mostly by one, now and then by more, seldom anywhere.
  static void Move(Random& random, int width, std::uint64_t one_in, std::span<std::uint8_t> bytes) {
    const auto step = static_cast<std::size_t>(width);
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      if (Below(random, one_in) != 0) continue;
      std::uint64_t unit = 0;
      std::memcpy(&unit, bytes.data() + at, step);
      const std::uint64_t kind = Below(random, 20);
      const std::uint64_t size = kind == 0 ? random() : kind < 4 ? 1 + Below(random, 40) : 1;
      unit = (random() & 1) != 0 ? unit + size : unit - size;
      std::memcpy(bytes.data() + at, &unit, step);
    }
  }

  void Add(std::string name, const Model& before, const Model& after, CodingRequest coding = CodingRequest::kSmallest) {
    vectors_.push_back(
        {std::move(name), CheckpointOf(before), DeltaBetween(before, after, coding), CheckpointOf(after)});
  }

  static std::string Lower(std::string_view name) {
    std::string lower(name);
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return lower;
  }

  void Types() {
    for (const DType dtype : testing::AllDTypes()) {
      Random random(static_cast<std::uint64_t>(dtype));
      const int width = UnitBytes(dtype);
      Tensors tensors;
      tensors.push_back(Tensor("t", dtype, {2, 300}, [&](auto bytes) {
        if (dtype == DType::kBool) {
          for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random() & 1);
        } else {
          Weights(random, width, bytes);
        }
      }));
      const Model before = ModelOf(tensors);
      Model after = before;
      if (dtype == DType::kBool) {
        for (auto& byte : after.tensors[0]) byte ^= Below(random, 30) == 0 ? 1 : 0;
      } else {
        Move(random, width, 25, after.tensors[0]);
      }
      Add("type_" + Lower(NameOf(dtype)), before, after, CodingRequest::kConditioned);
    }
  }

  void Modes() {
    const std::pair<CodingRequest, const char*> modes[] = {{CodingRequest::kConditioned, "conditioned"},
                                                           {CodingRequest::kUniform, "uniform"},
                                                           {CodingRequest::kGaps, "gaps"},
                                                           {CodingRequest::kDense, "dense"},
                                                           {CodingRequest::kWhole, "whole"}};
    const std::pair<DType, const char*> types[] = {
        {DType::kU8, "8"}, {DType::kBF16, "16"}, {DType::kF32, "32"}, {DType::kF64, "64"}};
    for (const auto& [coding, mode] : modes) {
      for (const auto& [dtype, bits] : types) {
        Random random(17);
        const int width = UnitBytes(dtype);
        const Model before = ModelOf({Tensor("t", dtype, {400}, [&](auto bytes) { Weights(random, width, bytes); })});
        Model after = before;
        Move(random, width, 15, after.tensors[0]);
        Add(std::string("mode_") + mode + "_" + bits, before, after, coding);
        if (coding == CodingRequest::kWhole) continue;
        Move(random, width, 1, after.tensors[0]);
        Add(std::string("mode_") + mode + "_" + bits + "_all_changed", before, after, coding);
      }
    }
  }

  void Edges() {
    Add("empty_model", ModelOf({}), ModelOf({}));
    Random random(3);
    const auto bf16 = [&](const char* name, std::uint64_t units) {
      return Tensor(name, DType::kBF16, {units}, [&](auto bytes) { Weights(random, 2, bytes); });
    };
    {
      const Model model = ModelOf({bf16("a", 50), bf16("b", 1)});
      Add("nothing_changed", model, model);
      vectors_.push_back({"nothing_changed_by_dense_tiles", CheckpointOf(StillModel()), StillDelta({1, 1}, {1, 1}),
                          CheckpointOf(StillModel())});
    }
    {  // Scalars, tensors of one unit, empty ones.
      const Model before = ModelOf({Tensor("empty", DType::kF32, {3, 0}, [](auto) {}),
                                    Tensor("scalar", DType::kF32, {}, [](auto b) { b[3] = 0x3f; }),
                                    Tensor("single", DType::kBF16, {1, 1}, [](auto b) { b[1] = 0x3f; }),
                                    Tensor("single_byte", DType::kI8, {1}, [](auto b) { b[0] = 5; }),
                                    Tensor("single_long", DType::kI64, {1}, [](auto b) { b[7] = 5; })});
      Model after = before;
      for (Bytes& tensor : after.tensors) {
        if (!tensor.empty()) tensor[0] ^= 1;
      }
      Add("scalars_and_single_units", before, after);
    }
    {  // Zeros of both signs, infinities, NaNs with payloads, subnormals, all into one another.
      const std::vector<std::uint16_t> special = {0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x7f81,
                                                  0x7fff, 0xffff, 0x0001, 0x8001, 0x007f, 0x7f7f, 0x3f80};
      Bytes from;
      Bytes to;
      ByteWriter from_writer(from);
      ByteWriter to_writer(to);
      for (const std::uint16_t a : special) {
        for (const std::uint16_t b : special) {
          from_writer.U16(a);
          to_writer.U16(b);
        }
      }
      const TensorSpec spec{"t", DType::kBF16, {special.size(), special.size()}};
      for (const auto& [coding, name] :
           {std::pair{CodingRequest::kConditioned, "conditioned"}, std::pair{CodingRequest::kUniform, "uniform"},
            std::pair{CodingRequest::kGaps, "gaps"}, std::pair{CodingRequest::kDense, "dense"}}) {
        Add(std::string("special_numbers_") + name, ModelOf({{spec, from}}), ModelOf({{spec, to}}), coding);
      }
    }
    {  // Tiles of 4096 units: the last unit of one, the first of the next, the last of all; one tile has no change.
      const Model before = ModelOf({bf16("t", 4 * 4096 + 5)});
      Model after = before;
      for (const std::size_t unit : {0, 4095, 4096, 8191, 3 * 4096, 4 * 4096 - 1, 4 * 4096, 4 * 4096 + 4}) {
        after.tensors[0][2 * unit] ^= 1;
      }
      for (std::size_t unit = 4096; unit < 8192; unit += 3) after.tensors[0][2 * unit] ^= 1;
      Add("tile_boundaries", before, after, CodingRequest::kConditioned);
      Add("tile_boundaries_gaps", before, after, CodingRequest::kGaps);
    }
    {  // Steps of any size take more than 32 raw bits.
      const Model before = ModelOf({Tensor("t", DType::kU64, {60}, [&](auto b) { Weights(random, 8, b); })});
      Model after = before;
      for (std::size_t at = 0; at < after.tensors[0].size(); at += 16) StoreU64(&after.tensors[0][at], random());
      Add("raw_bits_above_32_uniform", before, after, CodingRequest::kUniform);
      Add("raw_bits_above_32_dense", before, after, CodingRequest::kDense);
    }
    {  // All changes at the beginning and one at the end: the wait between is longer than the horizon, many times.
      const Model before = ModelOf({bf16("t", 4000)});
      Model after = before;
      for (std::size_t unit = 0; unit < 300; ++unit) after.tensors[0][2 * unit] ^= 1;
      after.tensors[0][2 * 3990] ^= 1;
      Add("waits_beyond_the_horizon_conditioned", before, after, CodingRequest::kConditioned);
      Add("waits_beyond_the_horizon_uniform", before, after, CodingRequest::kUniform);
    }
    {  // Tables made from a sample: a tail for what was not seen.
      const Model before = ModelOf({Tensor("t", DType::kF8E4M3, {40'000}, [&](auto b) { Weights(random, 1, b); })});
      Model after = before;
      Move(random, 1, 200, after.tensors[0]);
      Add("tables_from_a_sample", before, after, CodingRequest::kConditioned);
    }
    {  // Tensors that share tables, with scales of their own, and some that do not.
      Tensors tensors;
      for (int t = 0; t < 6; ++t) tensors.push_back(bf16(std::string(1, static_cast<char>('a' + t)).c_str(), 700));
      tensors.push_back(Tensor("scale", DType::kF32, {200}, [&](auto b) { Weights(random, 4, b); }));
      const Model before = ModelOf(tensors);
      Model after = before;
      std::uint64_t one_in = 5;
      for (Bytes& tensor : after.tensors) Move(random, tensor.size() == 800 ? 4 : 2, one_in *= 2, tensor);
      Add("shared_tables", before, after, CodingRequest::kConditioned);
    }
  }

  void Gaps() {
    Random random(8);
    {  // Gaps on either side of the longest, once and several times over.
      const Model before = ModelOf({Tensor("t", DType::kU8, {6000}, [&](auto b) { Weights(random, 1, b); })});
      Model after = before;
      std::size_t unit = 0;
      for (const std::size_t gap : {0, 0, 253, 254, 255, 256, 509, 510, 511, 764, 765, 1, 766, 0}) {
        after.tensors[0][unit += gap] ^= 1;
        ++unit;
      }
      Add("gaps_around_the_longest", before, after, CodingRequest::kGaps);
    }
    {  // The same for wide gaps, which take a large tile.
      const Model before = ModelOf({Tensor("t", DType::kU8, {131'500}, [](auto) {})});
      Model after = before;
      std::size_t unit = 0;
      for (const std::size_t gap : {65'534, 65'535, 300}) {
        after.tensors[0][unit += gap] = 9;
        ++unit;
      }
      Add("gaps_around_the_longest_wide", before, after, CodingRequest::kGaps);
    }
    {  // Steps on either side of the largest short one, and the largest there are.
      Bytes from;
      Bytes to;
      ByteWriter from_writer(from);
      ByteWriter to_writer(to);
      for (const std::uint32_t step : {1u, 2u, 6u, 7u, 8u, 9u, 135u, 136u, 16'000u, 40'000u, 0x7fffffffu}) {
        from_writer.U32(step);
        from_writer.U32(0x80000000u);
        to_writer.U32(0);
        to_writer.U32(0x80000000u + step);
      }
      from_writer.U32(0);
      to_writer.U32(0xffffffff);
      from_writer.U32(0xffffffff);
      to_writer.U32(0);
      const TensorSpec spec{"t", DType::kU32, {from.size() / 4}};
      // Units that stay as they are, so that this is not written whole.
      from.resize(2 * from.size());
      to.resize(2 * to.size());
      const TensorSpec longer{"t", DType::kU32, {from.size() / 4}};
      Add("gaps_with_long_steps", ModelOf({{longer, from}}), ModelOf({{longer, to}}), CodingRequest::kGaps);
      Add("gaps_that_would_take_more_than_the_tensor", ModelOf({{spec, Bytes(from.size() / 2, 0x55)}}),
          ModelOf({{spec, Bytes(from.size() / 2, 0xaa)}}), CodingRequest::kGaps);
    }
  }

  // A part: only these boxes of the first tensor change.
  void AddBoxes(std::string name, const Model& before, Model after, const std::vector<Box>& boxes, CodingRequest coding,
                bool whole_delta) {
    const TensorSpec& spec = before.layout->tensors()[0];
    Model expected = before;
    std::vector<std::pair<Bytes, Bytes>> box_bits;
    box_bits.reserve(boxes.size());
    EncodeRequest request;
    request.layout_before = request.layout_after = before.layout.get();
    request.coding = coding;
    for (const Box& box : boxes) {
      box_bits.emplace_back(Gathered(spec, box, before.tensors[0]), Gathered(spec, box, after.tensors[0]));
      EncodeEntry entry;
      entry.box = box;
      entry.old_bytes = box_bits.back().first;
      entry.new_bytes = box_bits.back().second;
      const BoxMap map = BoxMap::Of(spec, box).value();
      const auto width = static_cast<std::size_t>(map.unit_bytes());
      map.ForEachStretch(0, map.unit_count(), [&](std::uint64_t, std::uint64_t unit, std::uint64_t count) {
        const auto stretch = std::span(before.tensors[0]).subspan(unit * width, count * width);
        entry.before += DigestOfRange(stretch, unit * width, BestKernels());
        std::copy_n(after.tensors[0].begin() + static_cast<std::ptrdiff_t>(unit * width), count * width,
                    expected.tensors[0].begin() + static_cast<std::ptrdiff_t>(unit * width));
      });
      request.entries.push_back(std::move(entry));
    }
    if (whole_delta) request.digests_before = DigestsOf(before);
    vectors_.push_back({std::move(name), CheckpointOf(before), MustEncode(request).file, CheckpointOf(expected)});
  }

  void Boxes() {
    Random random(5);
    const Model before = ModelOf({Tensor("t", DType::kBF16, {24, 40}, [&](auto bytes) { Weights(random, 2, bytes); }),
                                  Tensor("u", DType::kU8, {10}, [](auto) {})});
    Model after = before;
    Move(random, 2, 12, after.tensors[0]);
    const Box left{{0, 0}, {24, 15}};
    const Box right_top{{0, 15}, {10, 25}};
    const Box right_bottom{{10, 15}, {14, 25}};
    AddBoxes("boxes_make_up_a_tensor", before, after, {right_bottom, left, right_top}, CodingRequest::kConditioned,
             true);
    AddBoxes("boxes_of_a_part", before, after, {left, right_bottom}, CodingRequest::kGaps, false);
    AddBoxes("boxes_dense", before, after, {right_top, right_bottom}, CodingRequest::kDense, false);
    AddBoxes("boxes_whole", before, after, {right_top, left}, CodingRequest::kWhole, false);
    const Model packed = ModelOf({Tensor("t", DType::kF6E2M3, {6, 3, 32}, [&](auto b) { Weights(random, 1, b); })});
    Model moved = packed;
    Move(random, 1, 6, moved.tensors[0]);
    AddBoxes("boxes_of_a_packed_type", packed, moved, {{{1, 0, 8}, {4, 3, 20}}, {{5, 1, 0}, {1, 2, 32}}},
             CodingRequest::kConditioned, false);
  }

  void Layouts() {
    Random random(6);
    const auto tensor = [&](const char* name, DType dtype, std::vector<std::uint64_t> shape) {
      return Tensor(name, dtype, std::move(shape), [&](auto b) { Weights(random, UnitBytes(dtype), b); });
    };
    const Model before = ModelOf({tensor("changed", DType::kBF16, {300}), tensor("removed", DType::kF32, {10}),
                                  tensor("reshaped", DType::kBF16, {6, 10}), tensor("retyped", DType::kF32, {12}),
                                  tensor("stays", DType::kI32, {9})});
    Bytes changed = before.tensors[0];
    Move(random, 2, 10, changed);
    const Model after = ModelOf({{{"changed", DType::kBF16, {300}}, changed},
                                 {{"reshaped", DType::kBF16, {60}}, before.tensors[2]},
                                 tensor("retyped", DType::kBF16, {12}),
                                 {{"stays", DType::kI32, {9}}, before.tensors[4]},
                                 tensor("added", DType::kF8E5M2, {4, 4}),
                                 tensor("added_empty", DType::kF64, {0, 7}),
                                 tensor("added_scalar", DType::kF16, {})});
    Add("layout_added_removed_reshaped_retyped", before, after);
    Add("layout_from_nothing", ModelOf({}), after);
    Add("layout_to_nothing", after, ModelOf({}));
  }

  void Ties() {
    Random random(7);
    const OwnedTensor embed = Tensor("embed", DType::kBF16, {100}, [&](auto b) { Weights(random, 2, b); });
    OwnedTensor moved = embed;
    Move(random, 2, 8, moved.bytes);
    const Model before = ModelOf({embed}, {{"lm_head", "embed"}});
    const Model after = ModelOf({moved}, {{"lm_head", "embed"}});
    // The base knows nothing of the tie; or it holds both names, and gets the new bits under both.
    Add("tie_unknown_to_the_base", before, after);
    const Bytes delta = DeltaBetween(before, after);
    const auto both = [](OwnedTensor tensor) {
      OwnedTensor second = tensor;
      second.spec.name = "lm_head";
      return CheckpointOf(ModelOf({std::move(tensor), std::move(second)}));
    };
    vectors_.push_back({"tie_held_under_both_names", both(embed), delta, both(moved)});
  }

  std::vector<GoodVector> vectors_;
};

// --- bad ones ---

class BadVectors {
 public:
  BadVectors() {
    Random random(11);
    Bytes weights(8300);
    for (std::uint8_t& unit : weights) unit = static_cast<std::uint8_t>((random() & 0x80) | (0x30 - Below(random, 24)));
    Bytes scales(4 * 120);
    for (std::size_t i = 0; i < 120; ++i) {
      StoreU32(&scales[4 * i], 0x3c000000 + static_cast<std::uint32_t>(Below(random, 1 << 20)));
    }
    before_ = ModelOf({{{"a", DType::kF8E4M3, {83, 100}}, weights},
                       {{"b", DType::kF32, {120}}, scales},
                       {{"c", DType::kU8, {64}}, RandomBytes(random, 64)},
                       {{"d", DType::kF4, {4, 8}}, RandomBytes(random, 16)},
                       {{"e", DType::kU8, {10}}, RandomBytes(random, 10)}});
    after_ = before_;
    for (std::uint8_t& unit : after_["a"]) unit = static_cast<std::uint8_t>(unit + (Below(random, 5) == 0 ? 1 : 0));
    for (std::size_t i = 0; i < 120; ++i) {
      StoreU32(&after_["b"][4 * i], LoadU32(&after_["b"][4 * i]) + static_cast<std::uint32_t>(Below(random, 5)) - 2);
    }
    after_["c"] = RandomBytes(random, 64);
    // One entry of each mode, whatever would be the smallest.
    FileContents contents = ContentsOf(DeltaBetween(before_, after_, CodingRequest::kWhole));
    contents.index.entries.clear();
    contents.payload.clear();
    const CodingRequest codings[] = {CodingRequest::kConditioned, CodingRequest::kDense, CodingRequest::kWhole};
    for (std::size_t t = 0; t < 3; ++t) {
      EncodeRequest request = WholeRequest(before_, after_, codings[t]);
      request.entries = {request.entries[t]};
      FileContents one = ContentsOf(MustEncode(request).file);
      one.index.entries[0].table_set += contents.sets.size();
      contents.index.entries.push_back(one.index.entries[0]);
      contents.sets.insert(contents.sets.end(), one.sets.begin(), one.sets.end());
      contents.payload.insert(contents.payload.end(), one.payload.begin(), one.payload.end());
    }
    file_ = FileOf(contents);
    WW_CHECK(MustApply(file_, before_) == after_ && contents.index.entries[0].tile_bytes.size() > 1);
  }

  std::vector<BadVector> Make() {
    Files();
    Bases();
    Indices();
    Entries();
    TablesAndStreams();
    for (BadVector& bad : BadGapVectors()) vectors_.push_back(std::move(bad));
    BoxesAndLayouts();
    return std::move(vectors_);
  }

 private:
  static constexpr const char* kDamaged = "damaged";
  static constexpr const char* kWrongBase = "wrong-base";
  static constexpr const char* kUnsupported = "unsupported";

  void Add(std::string name, const char* expected, Bytes delta) {
    vectors_.push_back({std::move(name), CheckpointOf(before_), std::move(delta), expected});
  }
  // The good file with something done to its meaning, or to its bytes; sealed again.
  void WithContents(std::string name, const char* expected, const std::function<void(FileContents&)>& spoil) {
    FileContents contents = ContentsOf(file_);
    spoil(contents);
    Add(std::move(name), expected, FileOf(contents));
  }
  void Opened(std::string name, const char* expected, const std::function<void(OpenFile&)>& spoil) {
    OpenFile open = Open(file_);
    spoil(open);
    Add(std::move(name), expected, Seal(open));
  }

  void Files() {
    const auto spoiled = [&](const std::function<void(Bytes&)>& spoil) {
      Bytes file = file_;
      spoil(file);
      return file;
    };
    Add("hash_does_not_fit_payload", kDamaged, spoiled([](Bytes& f) { f[f.size() - 3] ^= 1; }));
    Add("hash_does_not_fit_index", kDamaged, spoiled([](Bytes& f) { f[HashOffset(f) + 40] ^= 1; }));
    Add("hash_damaged", kDamaged, spoiled([](Bytes& f) { f[HashOffset(f)] ^= 0x80; }));
    Add("truncated", kDamaged, spoiled([](Bytes& f) { f.pop_back(); }));
    Add("truncated_in_the_header", kDamaged, spoiled([](Bytes& f) { f.resize(50); }));
    Add("empty_file", kDamaged, {});
    Add("byte_after_the_end", kDamaged, spoiled([](Bytes& f) { f.push_back(0); }));
    Opened("version_unknown", kUnsupported, [](OpenFile& f) { f.metadata["version"] = "2"; });
    Opened("metadata_with_more", kDamaged, [](OpenFile& f) { f.metadata["note"] = "x"; });
    const auto assembled = [&](const std::vector<std::string>& names, DType dtype) {
      const OpenFile open = Open(file_);
      Bytes index(32);
      index.insert(index.end(), open.index.begin(), open.index.end());
      std::vector<TensorView> views;
      for (const std::string& name : names) {
        const Bytes& bytes = name == "index" ? index : name == "tables" ? open.tables : open.payload;
        views.push_back({{name, dtype, {bytes.size()}}, bytes});
      }
      Bytes file = testing::WriteSafetensors(views, open.metadata).value();
      if (names[0] == "index") SealAt(file, HashOffset(file));
      return file;
    };
    Add("fourth_tensor", kDamaged, assembled({"index", "tables", "payload", "more"}, DType::kU8));
    Add("no_payload_tensor", kDamaged, assembled({"index", "tables"}, DType::kU8));
    Add("tensors_in_another_order", kDamaged, assembled({"index", "payload", "tables"}, DType::kU8));
    Add("tensors_of_another_type", kDamaged, assembled({"index", "tables", "payload"}, DType::kI8));
    Opened("index_of_nothing_but_its_hash", kDamaged, [](OpenFile& f) { f.index.clear(); });
  }

  void Bases() {
    const auto other = [&](std::string name, const Model& base) {
      vectors_.push_back({std::move(name), CheckpointOf(base), file_, kWrongBase});
    };
    Model base = before_;
    base["a"][100] ^= 1;
    other("base_with_other_bits", base);
    base = before_;
    base["e"][3] ^= 0x40;
    other("base_with_a_wrong_byte_in_an_untouched_tensor", base);
    base = before_;
    std::size_t other_value = 1;
    while (base["a"][other_value] == base["a"][0]) ++other_value;
    std::swap(base["a"][0], base["a"][other_value]);
    other("base_with_two_values_swapped", base);
    base = before_;
    base["b"][3] ^= 0x80;
    base["b"][7] ^= 0x80;
    other("base_with_two_signs_flipped", base);
    other("applied_twice", after_);
    other("base_of_another_layout", ModelOf({{{"a", DType::kF8E4M3, {8300}}, before_["a"]}}));
    WithContents("state_before_wrong", kWrongBase, [](FileContents& c) { c.index.state->before[5] ^= 1; });
    WithContents("digest_before_wrong", kWrongBase, [](FileContents& c) { c.index.entries[0].before.sums[0] ^= 1; });
    WithContents("layout_hash_wrong", kWrongBase, [](FileContents& c) { c.index.layout_hash[0] ^= 1; });
  }

  void Indices() {
    Opened("flag_unknown", kUnsupported, [](OpenFile& f) { f.index[0] |= 8; });
    Opened("varint_overlong", kDamaged, [](OpenFile& f) {
      f.index[0] |= 0x80;
      f.index.insert(f.index.begin() + 1, 0);
    });
    Opened("byte_after_the_index", kDamaged, [](OpenFile& f) { f.index.push_back(0); });
    Opened("byte_after_the_tables", kDamaged, [](OpenFile& f) { f.tables.push_back(0); });
    Opened("payload_too_long", kDamaged, [](OpenFile& f) { f.payload.push_back(0); });
    Opened("payload_too_short", kDamaged, [](OpenFile& f) { f.payload.pop_back(); });
    Opened("index_cut_off", kDamaged, [](OpenFile& f) { f.index.pop_back(); });
    Opened("tables_cut_off", kDamaged, [](OpenFile& f) { f.tables.pop_back(); });
    Opened("tables_missing", kDamaged, [](OpenFile& f) { f.tables = {0}; });
  }

  void Entries() {
    WithContents("digest_after_wrong", kDamaged, [](FileContents& c) { c.index.entries[0].after.sums[1] ^= 1; });
    WithContents("digest_after_wrong_of_a_dense_entry", kDamaged,
                 [](FileContents& c) { c.index.entries[1].after.sums[0] ^= 1; });
    WithContents("digest_after_wrong_of_a_whole_entry", kDamaged,
                 [](FileContents& c) { c.index.entries[2].after.sums[0] ^= 1; });
    WithContents("digest_not_below_the_modulus", kDamaged,
                 [](FileContents& c) { c.index.entries[0].after.sums[0] = kDigestPrime; });
    WithContents("state_after_wrong", kDamaged, [](FileContents& c) { c.index.state->after[5] ^= 1; });
    WithContents("changed_count_too_high", kDamaged, [](FileContents& c) { ++c.index.entries[0].changed; });
    WithContents("changed_count_too_low", kDamaged, [](FileContents& c) { --c.index.entries[0].changed; });
    WithContents("changed_count_wrong_of_a_dense_entry", kDamaged,
                 [](FileContents& c) { --c.index.entries[1].changed; });
    WithContents("changed_count_above_the_units", kDamaged, [](FileContents& c) { c.index.entries[0].changed = 8301; });
    WithContents("tensor_beyond_the_layout", kDamaged, [](FileContents& c) { c.index.entries[2].tensor = 5; });
    WithContents("mode_unknown", kDamaged,
                 [](FileContents& c) { c.index.entries[2].mode = static_cast<EntryMode>(8); });
    WithContents("tile_size_too_large", kDamaged, [](FileContents& c) { c.index.entries[0].tile_log2 = 19; });
    WithContents("tile_size_too_small", kDamaged, [](FileContents& c) { c.index.entries[0].tile_log2 = 7; });
    WithContents("tile_size_another", kDamaged, [](FileContents& c) { c.index.entries[0].tile_log2 += 2; });
    WithContents("tile_count_too_low", kDamaged, [](FileContents& c) {
      auto& tiles = c.index.entries[0].tile_bytes;
      tiles[0] += tiles.back();
      tiles.pop_back();
    });
    WithContents("tile_count_too_high", kDamaged, [](FileContents& c) { c.index.entries[0].tile_bytes.push_back(0); });
    WithContents("tile_lengths_shifted", kDamaged, [](FileContents& c) {
      ++c.index.entries[0].tile_bytes[0];
      --c.index.entries[0].tile_bytes[1];
    });
    WithContents("tile_lengths_all_zero", kDamaged, [](FileContents& c) {
      IndexEntry& entry = c.index.entries[0];
      c.payload.erase(c.payload.begin(), c.payload.begin() + static_cast<std::ptrdiff_t>(entry.PayloadBytes()));
      std::fill(entry.tile_bytes.begin(), entry.tile_bytes.end(), 0);
    });
    Opened("tile_lengths_with_stray_bits", kDamaged, [&](OpenFile& f) {
      // Where the first entry's lengths end, its digest before begins.
      const auto digest = ContentsOf(file_).index.entries[0].before.ToBytes();
      const auto at = std::search(f.index.begin(), f.index.end(), digest.begin(), digest.end());
      WW_CHECK(at != f.index.end() && (at[-1] & 0x80) == 0);
      at[-1] |= 0x80;
    });
    WithContents("whole_of_the_wrong_size", kDamaged, [](FileContents& c) {
      c.index.entries[2].whole_bytes += 4;
      c.payload.resize(c.payload.size() + 4);
    });
    WithContents("entry_twice", kDamaged, [](FileContents& c) {
      c.index.entries.push_back(c.index.entries[2]);
      c.payload.insert(c.payload.end(), c.payload.end() - 64, c.payload.end());
    });
    WithContents("entry_left_out", kDamaged, [](FileContents& c) {
      c.index.entries.pop_back();
      c.payload.resize(c.payload.size() - 64);
    });
    WithContents("table_set_missing", kDamaged, [](FileContents& c) { c.index.entries[0].table_set = c.sets.size(); });
    WithContents("table_set_of_the_other_mode", kDamaged,
                 [](FileContents& c) { c.index.entries[0].table_set = c.index.entries[1].table_set; });
    WithContents("scale_another", kDamaged, [](FileContents& c) { c.index.entries[0].scale += 3; });
  }

  void TablesAndStreams() {
    // All of these change the set that the first entry, eight bits wide, uses.
    const auto set = [&](std::string name, const std::function<void(TableSet&)>& spoil) {
      WithContents(std::move(name), kDamaged, [&](FileContents& c) { spoil(c.sets[c.index.entries[0].table_set]); });
    };
    set("table_rate_out_of_range", [](TableSet& s) { s.rate_codes[2] = 192; });
    set("table_weight_out_of_range", [](TableSet& s) { s.symbols[1].codes = {1, 193}; });
    set("table_weights_all_zero", [](TableSet& s) { s.symbols[1].codes = {0, 0}; });
    set("table_with_too_many_symbols", [](TableSet& s) { s.symbols[15].codes.assign(15, 1); });
    set("table_class_rule_outside_the_unit", [](TableSet& s) { s.rule.shift = 5; });
    set("table_class_rule_of_nine_bits", [](TableSet& s) { s.rule.bits = 9; });
    set("table_with_another_class_rule", [](TableSet& s) { s.rule.lowest += 1; });
    set("table_without_symbols", [](TableSet& s) { s.symbols.fill({}); });
    set("table_of_the_other_order",
        [](TableSet& s) { s.rule.order = s.rule.order == Order::kInteger ? Order::kSignMagnitude : Order::kInteger; });
    Opened("table_flags_unknown", kDamaged, [](OpenFile& f) { f.tables[1] |= 8; });
    Opened("table_dense_and_uniform", kDamaged, [](OpenFile& f) { f.tables[1] |= 6; });
    Opened("stream_with_a_flipped_bit", kDamaged, [](OpenFile& f) { f.payload[20] ^= 4; });
    Opened("stream_all_zero", kDamaged, [&](OpenFile& f) {
      std::fill_n(f.payload.begin(), ContentsOf(file_).index.entries[0].tile_bytes[0], std::uint8_t{0});
    });
    WithContents("stream_with_a_word_left", kDamaged, [](FileContents& c) {
      c.payload.insert(c.payload.begin(), 4, 0x55);
      c.index.entries[0].tile_bytes[0] += 4;
    });
    WithContents("stream_cut_off", kDamaged, [](FileContents& c) {
      c.payload.erase(c.payload.begin());
      --c.index.entries[0].tile_bytes[0];
    });
    WithContents("stream_missing", kDamaged, [](FileContents& c) {
      auto& tile = c.index.entries[0].tile_bytes[0];
      c.payload.erase(c.payload.begin(), c.payload.begin() + static_cast<std::ptrdiff_t>(tile));
      tile = 0;
    });
    // Dense tiles in which every unit stays as it is, for certain: their streams are the state 1 and nothing else.
    const auto still = [&](std::string name, std::vector<std::uint32_t> tiles, Bytes payload) {
      vectors_.push_back(
          {std::move(name), CheckpointOf(StillModel()), StillDelta(std::move(tiles), std::move(payload)), kDamaged});
    };
    still("stream_not_ending_in_state_1", {1, 1}, {1, 2});
    still("stream_of_a_dense_tile_missing", {1, 0}, {1});
  }

  void BoxesAndLayouts() {
    // A part with two boxes of "a" and one of "d", which is packed.
    EncodeRequest request;
    request.layout_before = request.layout_after = before_.layout.get();
    request.coding = CodingRequest::kWhole;
    const auto row_box = [&](std::size_t tensor, std::uint64_t row, std::uint64_t rows, std::size_t row_bytes,
                             std::uint64_t columns) {
      EncodeEntry entry;
      entry.tensor = tensor;
      entry.box = Box{{row, 0}, {rows, columns}};
      entry.old_bytes = std::span(before_.tensors[tensor]).subspan(row * row_bytes, rows * row_bytes);
      entry.new_bytes = std::span(boxed_.tensors[tensor]).subspan(row * row_bytes, rows * row_bytes);
      entry.before = DigestOfRange(entry.old_bytes, row * row_bytes, BestKernels());
      return entry;
    };
    boxed_ = after_;
    boxed_["a"][0] ^= 1;
    boxed_["a"][100 * 5] ^= 1;
    boxed_["d"][4] ^= 1;
    request.entries = {row_box(0, 0, 4, 100, 100), row_box(0, 4, 3, 100, 100), row_box(3, 1, 2, 4, 8)};
    const Bytes boxes = MustEncode(request).file;
    const auto box = [&](std::string name, const std::function<void(std::vector<IndexEntry>&)>& spoil) {
      FileContents contents = ContentsOf(boxes);
      WW_CHECK(contents.index.entries.size() == 3);
      spoil(contents.index.entries);
      Add(std::move(name), kDamaged, FileOf(contents));
    };
    box("boxes_overlap", [](auto& e) { e[1].box->start[0] = 3; });
    box("box_outside_the_tensor", [](auto& e) { e[1].box->start[0] = 81; });
    box("box_outside_by_overflow", [](auto& e) { e[1].box->start[0] = ~std::uint64_t{0}; });
    box("box_empty", [](auto& e) { e[1].box->extent[0] = 0; });
    box("box_with_too_few_dimensions", [](auto& e) { e[1].box = Box{{4}, {3}}; });
    box("box_with_too_many_dimensions", [](auto& e) { e[1].box = Box{{4, 0, 0}, {3, 100, 1}}; });
    box("box_that_splits_a_byte", [](auto& e) { e[2].box = Box{{1, 1}, {2, 7}}; });
    box("box_of_another_size", [](auto& e) { e[1].box->extent[0] = 2; });
    FileContents beside = ContentsOf(boxes);
    beside.index.entries[1].box.reset();
    beside.index.entries[1].whole_bytes = 8300;
    beside.payload.insert(beside.payload.begin() + 700, 8300 - 300, 0);
    Add("box_beside_the_whole_tensor", kDamaged, FileOf(beside));

    const OwnedTensor fresh{{"new", DType::kU8, {5}}, {1, 2, 3, 4, 5}};
    const Model after = ModelOf({{before_.layout->tensors()[0], before_.tensors[0]},
                                 {before_.layout->tensors()[1], before_.tensors[1]},
                                 {before_.layout->tensors()[3], before_.tensors[3]},
                                 {before_.layout->tensors()[4], before_.tensors[4]},
                                 fresh},
                                {{"alias", "new"}, {"other", "a"}});
    const Bytes layouts = DeltaBetween(before_, after);
    const auto layout = [&](std::string name, const char* expected, const std::function<void(FileContents&)>& spoil) {
      FileContents contents = ContentsOf(layouts);
      WW_CHECK(contents.index.entries.size() == 1 && contents.index.layout_change->removed.size() == 1);
      spoil(contents);
      Add(std::move(name), expected, FileOf(contents));
    };
    layout("layout_after_of_another_hash", kDamaged,
           [](FileContents& c) { c.index.layout_change->after_hash[0] ^= 1; });
    layout("removed_tensor_is_not_there", kDamaged, [](FileContents& c) { c.index.layout_change->removed = {9}; });
    layout("removed_twice", kDamaged, [](FileContents& c) { c.index.layout_change->removed = {2, 2}; });
    layout("added_tensor_is_there_already", kDamaged,
           [](FileContents& c) { c.index.layout_change->added[0].name = "a"; });
    layout("added_type_unknown", kUnsupported,
           [](FileContents& c) { c.index.layout_change->added[0].dtype = static_cast<DType>(99); });
    layout("added_name_not_utf8", kDamaged, [](FileContents& c) { c.index.layout_change->added[0].name = "\xff"; });
    layout("alias_of_nothing", kDamaged, [](FileContents& c) { c.index.layout_change->aliases["alias"] = "nothing"; });
    layout("alias_that_is_a_tensor", kDamaged, [](FileContents& c) { c.index.layout_change->aliases["b"] = "a"; });
    layout("new_tensor_without_data", kDamaged, [](FileContents& c) {
      c.index.entries.clear();
      c.payload.clear();
    });
    layout("new_tensor_as_a_box", kDamaged, [](FileContents& c) {
      c.index.entries[0].box = Box{{0}, {4}};
      c.index.entries[0].whole_bytes = 4;
      c.payload.resize(4);
    });
    layout("new_tensor_with_a_digest_before", kDamaged,
           [](FileContents& c) { c.index.entries[0].before = c.index.entries[0].after; });
    layout("new_tensor_as_a_change", kDamaged, [&](FileContents& c) {
      const FileContents good = ContentsOf(file_);
      c.sets = good.sets;
      IndexEntry& entry = c.index.entries[0];
      entry.mode = EntryMode::kSparse;
      entry.whole_bytes = 0;
      entry.table_set = good.index.entries[0].table_set;
      entry.tile_log2 = 12;
      entry.changed = 5;
      entry.tile_bytes = {5};
    });
    layout("new_tensor_as_a_box_of_all_of_it", kDamaged, [](FileContents& c) {
      c.index.entries[0].box = Box{{0}, {5}};
    });
    // Rows of one and a half bytes: whole bytes as a whole, which is no reason to let them have boxes.
    const TensorSpec ragged{"t", DType::kF4, {2, 3}};
    const Model ragged_before = ModelOf({{ragged, {1, 2, 3}}});
    FileContents ragged_parts =
        ContentsOf(DeltaBetween(ragged_before, ModelOf({{ragged, {4, 2, 3}}}), CodingRequest::kWhole));
    ragged_parts.index.entries[0].box = Box{{0, 0}, {2, 3}};
    vectors_.push_back({"box_of_rows_that_split_a_byte", CheckpointOf(ragged_before), FileOf(ragged_parts), kDamaged});
    // Two names in the wrong order, and a flag for none.
    Bytes aliases = DeltaBetween(after, after);
    OpenFile open = Open(aliases);
    // flags, layout hash, state digests, then the list: 2, "alias" "new", "other" "a".
    const std::size_t at = 1 + 32 + 64;
    WW_CHECK(open.index[0] == 5 && open.index[at] == 2);
    OpenFile swapped = open;
    const Bytes first(open.index.begin() + at + 1, open.index.begin() + at + 11);
    const Bytes second(open.index.begin() + at + 11, open.index.begin() + at + 19);
    std::copy(first.begin(), first.end(), std::copy(second.begin(), second.end(), swapped.index.begin() + at + 1));
    vectors_.push_back({"aliases_out_of_order", CheckpointOf(after), Seal(swapped), kDamaged});
    OpenFile none = open;
    none.index.erase(none.index.begin() + at + 1, none.index.begin() + at + 19);
    none.index[at] = 0;
    vectors_.push_back({"aliases_empty", CheckpointOf(after), Seal(none), kDamaged});
  }

  Model before_;
  Model after_;
  Model boxed_;
  Bytes file_;
  std::vector<BadVector> vectors_;
};

}  // namespace weightwire::testing
