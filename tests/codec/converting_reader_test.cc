// Weights that are published as other numbers, or lie in another order: each unit is what plain arithmetic gives.
#include "codec/encode/converting_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "codec/format/units.h"
#include "codec/kernels/convert_scalar.h"
#include "codec/models.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

// A tensor in memory whose dimensions lie in any order, with room between them, and its elements' offsets in row-major
// order.
struct Scattered {
  Bytes memory;
  StridedTensor tensor;
  std::vector<std::size_t> offsets;  // of elements, in memory

  Scattered(Random& random, DType dtype, std::vector<std::uint64_t> shape) {
    const std::size_t rank = shape.size();
    std::vector<std::size_t> order(rank);
    std::iota(order.begin(), order.end(), 0);
    if (Below(random, 2) == 0) std::shuffle(order.begin(), order.end(), random);
    std::vector<std::int64_t> strides(rank);
    std::int64_t stride = 1;
    for (std::size_t k = rank; k-- > 0;) {
      strides[order[k]] = stride;
      stride *= static_cast<std::int64_t>(shape[order[k]] + Below(random, 2));
    }
    const auto width = static_cast<std::size_t>(UnitBytes(dtype));
    memory.resize(static_cast<std::size_t>(stride) * width);
    for (auto& byte : memory) byte = static_cast<std::uint8_t>(random());
    offsets = {0};
    for (std::size_t d = 0; d < rank; ++d) {
      std::vector<std::size_t> next;
      for (const std::size_t offset : offsets) {
        for (std::uint64_t i = 0; i < shape[d]; ++i) next.push_back(offset + i * static_cast<std::size_t>(strides[d]));
      }
      offsets = std::move(next);
    }
    tensor = {memory.data(), dtype, std::move(shape), std::move(strides)};
  }

  [[nodiscard]] float At(std::size_t element) const {
    return tensor.dtype == DType::kF32
               ? LoadUnit<float>(memory.data(), offsets[element])
               : std::bit_cast<float>(std::uint32_t{LoadUnit<std::uint16_t>(memory.data(), offsets[element])} << 16);
  }
};

// All units, in batches of random sizes.
Bytes ReadAll(Random& random, const UnitReader& reader, std::size_t count, std::size_t width) {
  Bytes out(count * width);
  for (std::uint64_t first = 0; first < count;) {
    const auto size = static_cast<std::uint32_t>(1 + Below(random, std::min<std::uint64_t>(count - first, 5000)));
    EXPECT_TRUE(reader.Read({&first, 1}, size, out.data() + first * width).ok());
    first += size;
  }
  return out;
}

std::vector<std::uint64_t> AnyShape(Random& random) {
  std::vector<std::uint64_t> shape;
  for (std::uint64_t rank = Below(random, 4); rank > 0; --rank) shape.push_back(1 + Below(random, 30));
  return shape;
}

TEST(ConvertingReader, PutsAnyOrderIntoRowMajor) {
  Random random(3);
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kF64}) {
    for (int round = 0; round < 50; ++round) {
      const Scattered from(random, dtype, AnyShape(random));
      const auto reader = MakeConvertingReader(from.tensor, dtype, std::nullopt, BestKernels()).value();
      const auto width = static_cast<std::size_t>(UnitBytes(dtype));
      const Bytes units = ReadAll(random, *reader, from.offsets.size(), width);
      for (std::size_t i = 0; i < from.offsets.size(); ++i) {
        ASSERT_TRUE(std::equal(&units[i * width], &units[i * width] + width, &from.memory[from.offsets[i] * width]));
      }
    }
  }
}

TEST(ConvertingReader, RoundsToBf16InAnyOrder) {
  Random random(4);
  for (int round = 0; round < 100; ++round) {
    const Scattered from(random, DType::kF32, AnyShape(random));
    const auto reader = MakeConvertingReader(from.tensor, DType::kBF16, std::nullopt, BestKernels()).value();
    const Bytes units = ReadAll(random, *reader, from.offsets.size(), 2);
    for (std::size_t i = 0; i < from.offsets.size(); ++i) {
      ASSERT_EQ(LoadUnit<std::uint16_t>(units.data(), i), ToBf16(std::bit_cast<std::uint32_t>(from.At(i))));
    }
  }
}

TEST(ConvertingReader, DividesEachBlockByItsScale) {
  Random random(5);
  ThreadPool pool(2);
  for (int round = 0; round < 12; ++round) {
    const DType dtype = round % 2 == 0 ? DType::kF32 : DType::kBF16;
    const std::uint64_t rows = 1 + Below(random, 400);
    const std::uint64_t columns = 1 + Below(random, 400);
    Scattered from(random, dtype, {rows, columns});
    for (const std::size_t offset : from.offsets) {  // numbers of a trained model's size
      const float weight = (static_cast<float>(Below(random, 20001)) - 10000.0F) / 300000.0F;
      const auto bits = std::bit_cast<std::uint32_t>(weight);
      if (dtype == DType::kF32) {
        StoreUnit(from.memory.data(), offset, bits);
      } else {
        StoreUnit(from.memory.data(), offset, ToBf16(bits));
      }
    }
    const ScaleKind kind = Below(random, 2) == 0 ? ScaleKind::kFloat : ScaleKind::kPowerOfTwo;
    const BlockScales scales = MakeBlockScales(from.tensor, kind, BestKernels(), pool).value();
    ASSERT_EQ(scales.columns, (columns + 127) / 128);
    std::vector<float> largest(scales.scales.size());
    for (std::size_t i = 0; i < from.offsets.size(); ++i) {
      float& block = largest[i / columns / 128 * scales.columns + i % columns / 128];
      block = std::max(block, std::abs(from.At(i)));
    }
    for (std::size_t b = 0; b < largest.size(); ++b) {
      float scale = largest[b] == 0 ? 1.0F : largest[b] / 448.0F;
      if (kind == ScaleKind::kPowerOfTwo && largest[b] != 0) scale = std::exp2(std::ceil(std::log2(scale)));
      ASSERT_EQ(scales.scales[b], scale);
    }
    const auto reader = MakeConvertingReader(from.tensor, DType::kF8E4M3, scales, BestKernels()).value();
    const Bytes units = ReadAll(random, *reader, from.offsets.size(), 1);
    for (std::size_t i = 0; i < from.offsets.size(); ++i) {
      const float scale = scales.scales[i / columns / 128 * scales.columns + i % columns / 128];
      ASSERT_EQ(units[i], ToE4m3(from.At(i) / scale));
    }
  }
}

TEST(ConvertingReader, RefusesWhatItCannotDoExactly) {
  Random random(6);
  ThreadPool pool(1);
  const Scattered vector(random, DType::kF32, {7});
  const Scattered f16(random, DType::kF16, {7, 7});
  EXPECT_FALSE(MakeBlockScales(vector.tensor, ScaleKind::kFloat, BestKernels(), pool).ok());
  EXPECT_FALSE(MakeBlockScales(f16.tensor, ScaleKind::kFloat, BestKernels(), pool).ok());
  EXPECT_FALSE(MakeConvertingReader(f16.tensor, DType::kBF16, std::nullopt, BestKernels()).ok());
  EXPECT_FALSE(MakeConvertingReader(vector.tensor, DType::kF8E4M3, std::nullopt, BestKernels()).ok());
  const Scattered matrix(random, DType::kF32, {300, 7});
  EXPECT_FALSE(MakeConvertingReader(matrix.tensor, DType::kF8E4M3, BlockScales{1, {1.0F}}, BestKernels()).ok());
}

}  // namespace
}  // namespace weightwire
