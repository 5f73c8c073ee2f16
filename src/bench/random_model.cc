#include "bench/random_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/random.h"
#include "codec/format/units.h"

namespace weightwire {
namespace {

// Each matrix has a small vector beside it.
constexpr std::uint64_t kColumns = 2048;
constexpr std::uint64_t kLine = 64;
constexpr std::size_t kExponents = 256;

std::uint64_t Units(std::span<const std::uint8_t> bytes) { return bytes.size() / sizeof(std::uint16_t); }

std::size_t ExponentOf(std::uint16_t bits) { return (bits >> 7) & 0xffU; }

Result<ModelState> Allocate(std::shared_ptr<const Layout> layout) {
  std::vector<std::uint64_t> offsets;
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < layout->size(); ++i) {
    offsets.push_back(size);
    size += (layout->byte_size(i) + kLine - 1) / kLine * kLine;
  }
  WW_TRY(HugeBuffer buffer, HugeBuffer::Allocate(size));
  ModelState state{std::move(layout), std::move(buffer), {}};
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    state.tensors.push_back(state.buffer.bytes().subspan(offsets[i], state.layout->byte_size(i)));
  }
  return state;
}

Result<std::shared_ptr<const Layout>> LayoutOf(std::uint64_t size_bytes, std::uint64_t most_rows) {
  std::vector<TensorSpec> specs;
  std::uint64_t left = size_bytes / sizeof(std::uint16_t);
  for (std::size_t layer = 0; left >= 2 * kColumns; ++layer) {
    const std::uint64_t rows = std::min(most_rows, left / kColumns - 1);
    specs.push_back({fmt::format("layers.{:03}.weight", layer), DType::kBF16, {rows, kColumns}});
    specs.push_back({fmt::format("layers.{:03}.norm", layer), DType::kBF16, {kColumns}});
    left -= (rows + 1) * kColumns;
  }
  if (specs.empty()) return Error(ErrorCode::kInvalidArgument, "the model to measure with is too small");
  WW_TRY(Layout layout, Layout::Make(std::move(specs), {}));
  return std::make_shared<const Layout>(std::move(layout));
}

// Close to a normal distribution: the sum of four uniform ones. `scale` is its deviation.
float NextWeight(SeededRandom& random, float scale) {
  const std::uint64_t bits = random.Next();
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (16 * i)) & 0xffffU);
  constexpr float kMiddle = 4 * 32767.5F;
  constexpr float kDeviation = 37837.2F;  // of the sum: 65536 / sqrt(3)
  return (sum - kMiddle) / kDeviation * scale;
}

std::uint16_t RoundToBf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// How likely a weight of each exponent is to change, in 2^-32: an update of one size for all reaches an ulp the more
// often, the smaller the ulp is. The size is chosen so that `share` of all change.
std::array<std::uint32_t, kExponents> Chances(const ModelState& state, double share) {
  std::array<double, kExponents> counts{};
  double all = 0;
  for (const std::span<const std::uint8_t> bytes : state.tensors) {
    constexpr std::uint64_t kSampleStep = 61;
    for (std::uint64_t i = 0; i < Units(bytes); i += kSampleStep) {
      ++counts[ExponentOf(LoadUnit<std::uint16_t>(bytes.data(), i))];
      ++all;
    }
  }
  const auto chance = [](std::size_t exponent, double size) {
    return std::min(0.5, std::exp2(size - static_cast<double>(exponent)));
  };
  double low = -64;
  double high = kExponents + 64;
  for (int i = 0; i < 60; ++i) {
    const double size = (low + high) / 2;
    double changed = 0;
    for (std::size_t e = 0; e < kExponents; ++e) changed += counts[e] * chance(e, size);
    (changed < share * all ? low : high) = size;
  }
  std::array<std::uint32_t, kExponents> chances{};
  for (std::size_t e = 0; e < kExponents; ++e) {
    chances[e] = static_cast<std::uint32_t>(chance(e, low) * std::numeric_limits<std::uint32_t>::max());
  }
  return chances;
}

}  // namespace

Result<ModelState> MakeRandomModel(std::uint64_t size_bytes, std::uint64_t seed, ThreadPool& pool, std::uint64_t rows) {
  WW_TRY(std::shared_ptr<const Layout> layout, LayoutOf(size_bytes, rows));
  WW_TRY(ModelState state, Allocate(std::move(layout)));
  pool.ParallelFor(state.tensors.size(), [&](std::size_t i, std::size_t) {
    SeededRandom random(seed * state.tensors.size() + i);
    const std::span<std::uint8_t> bytes = state.tensors[i];
    for (std::uint64_t unit = 0; unit < Units(bytes); ++unit) {
      StoreUnit<std::uint16_t>(bytes.data(), unit, RoundToBf16(NextWeight(random, 0.02F)));
    }
  });
  return state;
}

Result<ModelState> CopyOf(const ModelState& state, ThreadPool& pool) {
  WW_TRY(ModelState copy, Allocate(state.layout));
  pool.ParallelFor(copy.tensors.size(), [&](std::size_t i, std::size_t) {
    std::copy(state.tensors[i].begin(), state.tensors[i].end(), copy.tensors[i].begin());
  });
  return copy;
}

void StepModel(ModelState& state, double share, std::uint64_t seed, ThreadPool& pool) {
  const std::array<std::uint32_t, kExponents> chances = Chances(state, share);
  pool.ParallelFor(state.tensors.size(), [&](std::size_t i, std::size_t) {
    SeededRandom random(seed * state.tensors.size() + i);
    const std::span<std::uint8_t> bytes = state.tensors[i];
    for (std::uint64_t unit = 0; unit < Units(bytes); ++unit) {
      const std::uint64_t bits = random.Next();
      const auto weight = LoadUnit<std::uint16_t>(bytes.data(), unit);
      if (static_cast<std::uint32_t>(bits) >= chances[ExponentOf(weight)]) continue;
      // Away from zero, or towards it; zero itself can only go one way.
      const bool up = (bits >> 63) != 0 || (weight & 0x7fffU) == 0;
      StoreUnit<std::uint16_t>(bytes.data(), unit, static_cast<std::uint16_t>(up ? weight + 1 : weight - 1));
    }
  });
}

}  // namespace weightwire
