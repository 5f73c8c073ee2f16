// Models in memory, and the whole way of a delta over them: encode, parse, stage, write. What most codec tests share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "codec/decode/decoder.h"
#include "codec/decode/state_view.h"
#include "codec/digest/state.h"
#include "codec/encode/encoder.h"
#include "codec/format/box.h"
#include "codec/format/delta_file.h"
#include "support/owned_tensor.h"
#include "tensor/checkpoint.h"

namespace weightwire::testing {

// Of units, in bytes.
constexpr int kWidths[] = {1, 2, 4, 8};

using Bytes = std::vector<std::uint8_t>;

// How many rounds a test of random cases makes: fewer under the sanitizers, which are that much slower, but at least
// one.
constexpr int Rounds(int rounds) {
#if defined(__SANITIZE_THREAD__)
  return std::max(1, rounds / 20);
#elif defined(__SANITIZE_ADDRESS__)
  return std::max(1, rounds / 5);
#else
  return rounds;
#endif
}

// A state that owns its bits. Tensors by the layout.
struct Model {
  std::shared_ptr<const Layout> layout = std::make_shared<const Layout>();
  std::vector<Bytes> tensors;

  [[nodiscard]] Bytes& operator[](std::string_view name) { return tensors[layout->Find(name).value()]; }
  friend bool operator==(const Model& a, const Model& b) { return *a.layout == *b.layout && a.tensors == b.tensors; }
};

inline Model ModelOf(std::vector<OwnedTensor> tensors, Aliases aliases = {}) {
  std::sort(tensors.begin(), tensors.end(),
            [](const OwnedTensor& a, const OwnedTensor& b) { return a.spec.name < b.spec.name; });
  std::vector<TensorSpec> specs;
  Model model;
  for (OwnedTensor& tensor : tensors) {
    specs.push_back(tensor.spec);
    model.tensors.push_back(std::move(tensor.bytes));
  }
  auto layout = Layout::Make(std::move(specs), std::move(aliases));
  WW_CHECK(layout.ok());
  model.layout = std::make_shared<const Layout>(std::move(layout).value());
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    WW_CHECK(model.tensors[i].size() == model.layout->byte_size(i));
  }
  return model;
}

// What the program would take: all tests run for one instruction set with WEIGHTWIRE_ISA=...
inline const Kernels& BestKernels() { return *ChooseKernels().value(); }

inline ThreadPool& OneThread() {
  static ThreadPool pool(1);
  return pool;
}

inline std::vector<Digest> DigestsOf(const Model& model) {
  const std::vector<std::span<const std::uint8_t>> spans(model.tensors.begin(), model.tensors.end());
  return DigestTensors(spans, BestKernels(), OneThread());
}

inline StateView ViewOf(const Model& model) {
  return {model.layout, {model.tensors.begin(), model.tensors.end()}, DigestsOf(model)};
}

// The tensor of `model` that a tensor of another layout continues: same name, type and shape.
inline std::optional<std::size_t> OriginIn(const Model& model, const TensorSpec& spec) {
  const auto index = model.layout->Find(spec.name);
  if (!index.has_value() || model.layout->tensors()[*index] != spec) return std::nullopt;
  return index;
}

// A request for the whole delta between two states; both must outlive it.
inline EncodeRequest WholeRequest(const Model& before, const Model& after,
                                  CodingRequest coding = CodingRequest::kSmallest) {
  EncodeRequest request;
  request.layout_before = before.layout.get();
  request.layout_after = after.layout.get();
  request.coding = coding;
  const std::vector<Digest> digests = DigestsOf(before);
  for (std::size_t i = 0; i < after.layout->size(); ++i) {
    EncodeEntry entry;
    entry.tensor = i;
    entry.new_bytes = after.tensors[i];
    const auto origin = OriginIn(before, after.layout->tensors()[i]);
    entry.has_old = origin.has_value();
    if (origin.has_value()) {
      entry.old_bytes = before.tensors[*origin];
      entry.before = digests[*origin];
    }
    request.entries.push_back(std::move(entry));
  }
  request.digests_before = digests;
  return request;
}

inline EncodedDelta MustEncode(const EncodeRequest& request, const Kernels& kernels = BestKernels(),
                               ThreadPool& pool = OneThread()) {
  auto delta = EncodeDelta(request, kernels, pool);
  if (!delta.ok()) ADD_FAILURE() << delta.error().message();
  return std::move(delta).value();
}

inline Bytes DeltaBetween(const Model& before, const Model& after, CodingRequest coding = CodingRequest::kSmallest) {
  return MustEncode(WholeRequest(before, after, coding)).file;
}

// Parses and stages a file against a state.
inline Result<std::shared_ptr<const StagedChange>> Stage(std::span<const std::uint8_t> file, const StateView& base,
                                                         const Kernels& kernels = BestKernels(),
                                                         ThreadPool& pool = OneThread()) {
  WW_TRY(const DeltaFile delta, DeltaFile::Parse(file));
  return StageDelta(delta, base, kernels, pool);
}

// What is left of `base` once the change is written to it.
inline Model Written(const Model& base, const StagedChange& change) {
  Model model;
  model.layout = std::make_shared<const Layout>(change.layout_after());
  for (std::size_t i = 0; i < model.layout->size(); ++i) {
    const auto origin = change.Origin(i);
    model.tensors.push_back(origin.has_value() ? base.tensors[*origin] : Bytes(model.layout->byte_size(i)));
    if (const StagedTensor* staged = change.Find(i); staged != nullptr) staged->Write(model.tensors.back());
  }
  return model;
}

// Stages and writes; a test failure when the file is refused.
inline Model MustApply(std::span<const std::uint8_t> file, const Model& base, const Kernels& kernels = BestKernels(),
                       ThreadPool& pool = OneThread()) {
  const auto change = Stage(file, ViewOf(base), kernels, pool);
  if (!change.ok()) {
    ADD_FAILURE() << change.error().message();
    return {};
  }
  return Written(base, *change.value());
}

// --- random bits ---

using Random = std::mt19937_64;

inline std::uint64_t Below(Random& random, std::uint64_t bound) { return bound == 0 ? 0 : random() % bound; }

inline Bytes RandomBytes(Random& random, std::size_t size) {
  Bytes bytes(size);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random() >> 56);
  return bytes;
}

// Bits as a trained tensor has them: BF16 numbers with a sign, exponents that halve in number with each step down from
// 0.1 or so, and a random mantissa.
inline Bytes WeightLikeBf16(Random& random, std::size_t units) {
  Bytes bytes(2 * units);
  for (std::size_t i = 0; i < units; ++i) {
    const std::uint64_t bits = random();
    const int down = std::min(12, std::countl_zero(bits | 1));
    StoreU16(bytes.data() + 2 * i,
             static_cast<std::uint16_t>(((bits & 1) << 15) | ((123u - static_cast<unsigned>(down)) << 7) |
                                        ((bits >> 8) & 127)));
  }
  return bytes;
}

// The units of a box, one after another.
inline Bytes Gathered(const TensorSpec& spec, const Box& box, const Bytes& tensor) {
  const BoxMap map = BoxMap::Of(spec, box).value();
  const auto width = static_cast<std::size_t>(map.unit_bytes());
  Bytes bytes(map.unit_count() * width);
  map.ForEachStretch(0, map.unit_count(), [&](std::uint64_t at, std::uint64_t unit, std::uint64_t count) {
    std::memcpy(bytes.data() + at * width, tensor.data() + unit * width, count * width);
  });
  return bytes;
}

// The digest of a box: of the tensor with zeros outside.
inline Digest BoxDigest(const TensorSpec& spec, const Box& box, const Bytes& tensor) {
  const BoxMap map = BoxMap::Of(spec, box).value();
  const auto width = static_cast<std::size_t>(map.unit_bytes());
  Bytes only(tensor.size(), 0);
  map.ForEachStretch(0, map.unit_count(), [&](std::uint64_t, std::uint64_t unit, std::uint64_t count) {
    std::memcpy(only.data() + unit * width, tensor.data() + unit * width, count * width);
  });
  return DigestOfRange(only, 0, BestKernels());
}

// Moves about one in `one_in` BF16 numbers to a neighbour.
inline void StepBf16(Random& random, Bytes& bytes, std::uint64_t one_in) {
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    if (Below(random, one_in) != 0) continue;
    const std::uint16_t bits = LoadU16(bytes.data() + i);
    StoreU16(bytes.data() + i, static_cast<std::uint16_t>((random() & 8) != 0 ? bits + 1 : bits - 1));
  }
}

}  // namespace weightwire::testing
