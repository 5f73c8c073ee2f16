// Conversions: every instruction set against the scalar ones, and these against plain arithmetic.
#include "codec/kernels/convert_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "codec/format/units.h"
#include "codec/kernels/convert_scalar.h"
#include "codec/kernels/kernels.h"
#include "codec/models.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

class ConvertKernelsTest : public ::testing::TestWithParam<const Kernels*> {
 protected:
  [[nodiscard]] static const ConvertKernels& kernels() { return *GetParam()->convert; }
};
INSTANTIATE_TEST_SUITE_P(Sets, ConvertKernelsTest, ::testing::ValuesIn(AllKernels()), [](const auto& test) {
  std::string name = test.param->name;
  std::erase(name, '-');
  return name;
});

// Bit patterns of every kind: any, halfway between two numbers of the shorter type, and the special ones.
std::vector<std::uint8_t> AnyFloats(Random& random, std::size_t count) {
  constexpr std::uint32_t kSpecial[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001,
                                        0x7f800001, 0x7fffffff, 1,          0x807fffff, 0x00800000, 0x7f7fffff};
  std::vector<std::uint8_t> floats(count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) {
    auto bits = static_cast<std::uint32_t>(random());
    switch (Below(random, 6)) {
      case 0:
        bits = (bits & 0xffff0000) | 0x8000;  // a tie of BF16
        break;
      case 1:  // near the numbers of F8_E4M3, and ties of them
        bits = (bits & 0x80f00000) + 0x3a000000 + static_cast<std::uint32_t>(Below(random, 64) << 20) +
               (Below(random, 2) == 0 ? 0x80000 : 0);
        break;
      case 2:
        bits = kSpecial[Below(random, std::size(kSpecial))];
        break;
      default:
        break;
    }
    StoreUnit(floats.data(), i, bits);
  }
  return floats;
}

float E4m3Value(std::uint32_t code) {
  const std::uint32_t exponent = (code >> 3) & 15;
  const auto mantissa = static_cast<float>(code & 7);
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, static_cast<int>(exponent) - 10);
}

TEST(Conversion, ToE4m3GivesTheNearestNumberAndTiesToEven) {
  for (std::uint32_t code = 0; code < 0x7e; ++code) {
    const float low = E4m3Value(code);
    const float high = E4m3Value(code + 1);
    const float middle = (low + high) / 2;
    EXPECT_EQ(ToE4m3(low), code);
    EXPECT_EQ(ToE4m3(-low), code | 0x80);
    EXPECT_EQ(ToE4m3(std::nextafter(middle, low)), code);
    EXPECT_EQ(ToE4m3(middle), (code & 1) == 0 ? code : code + 1);
    EXPECT_EQ(ToE4m3(std::nextafter(middle, high)), code + 1);
  }
  EXPECT_EQ(ToE4m3(448), 0x7e);
  EXPECT_EQ(ToE4m3(1e9F), 0x7e);
  EXPECT_EQ(ToE4m3(-INFINITY), 0xfe);
  EXPECT_EQ(ToE4m3(NAN) & 0x7f, 0x7f);
}

TEST(Conversion, ToBf16GivesTheNearestNumberAndTiesToEven) {
  for (std::uint32_t code = 0; code < 0x7f80; ++code) {
    const std::uint32_t low = code << 16;
    EXPECT_EQ(ToBf16(low), code);
    EXPECT_EQ(ToBf16(low + 0x7fff), code);
    EXPECT_EQ(ToBf16(low + 0x8000), (code & 1) == 0 ? code : code + 1);
    EXPECT_EQ(ToBf16(low + 0x8001), code + 1);
    EXPECT_EQ(ToBf16((low + 0x8001) | 0x80000000), (code + 1) | 0x8000);
  }
  EXPECT_EQ(ToBf16(0x7f800001), 0xffff);
}

TEST_P(ConvertKernelsTest, ConvertAsTheScalarKernel) {
  Random random(7);
  for (int round = 0; round < 400; ++round) {
    const std::size_t count = Below(random, 200);
    const std::size_t shift = Below(random, 4);  // any alignment
    std::vector<std::uint8_t> floats = AnyFloats(random, count);
    floats.insert(floats.begin(), shift, 0);
    const std::uint8_t* from = floats.data() + shift;

    std::vector<std::uint8_t> truth(2 * count);
    std::vector<std::uint8_t> result(2 * count);
    ScalarConvertKernels()->to_bf16(from, count, truth.data());
    kernels().to_bf16(from, count, result.data());
    ASSERT_EQ(result, truth);

    const float scale = std::bit_cast<float>(static_cast<std::uint32_t>(0x38000000 + Below(random, 0x10000000)));
    truth.resize(count);
    result.resize(count);
    ScalarConvertKernels()->to_e4m3(from, count, scale, truth.data());
    kernels().to_e4m3(from, count, scale, result.data());
    ASSERT_EQ(result, truth);

    ASSERT_EQ(kernels().largest(from, count), ScalarConvertKernels()->largest(from, count));
  }
}

}  // namespace
}  // namespace weightwire
