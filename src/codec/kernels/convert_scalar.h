// One number at a time: the definition of the conversions, and the ends of the vectors' loops.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace weightwire {

inline constexpr std::uint32_t kFloatMagnitude = 0x7fffffff;  // all but the sign
inline constexpr std::uint32_t kFloatInfinity = 0x7f800000;

constexpr std::uint16_t ToBf16(std::uint32_t bits) {
  if ((bits & kFloatMagnitude) > kFloatInfinity) return 0xffff;
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline constexpr float kLargestE4m3 = 448.0F;
inline constexpr float kLeastNormalE4m3 = 0x1p-6F;
// Whose ulp is the distance of the subnormal numbers: adding it rounds to one of them.
inline constexpr float kSubnormalE4m3 = 0x1p14F;
// Mantissa bits that F32 has more than F8_E4M3, and the difference of their exponents' biases.
inline constexpr int kMantissaE4m3 = 20;
inline constexpr std::uint32_t kBiasE4m3 = (127 - 7) << 3;

inline std::uint8_t ToE4m3(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t sign = (bits >> 24) & 0x80;
  if ((bits & kFloatMagnitude) > kFloatInfinity) return static_cast<std::uint8_t>(sign | 0x7f);
  const float size = std::min(std::bit_cast<float>(bits & kFloatMagnitude), kLargestE4m3);
  if (size < kLeastNormalE4m3) {
    return static_cast<std::uint8_t>(
        sign | (std::bit_cast<std::uint32_t>(size + kSubnormalE4m3) - std::bit_cast<std::uint32_t>(kSubnormalE4m3)));
  }
  const auto size_bits = std::bit_cast<std::uint32_t>(size);
  const std::uint32_t rounded = size_bits + 0x7ffff + ((size_bits >> kMantissaE4m3) & 1);
  return static_cast<std::uint8_t>(sign | ((rounded >> kMantissaE4m3) - kBiasE4m3));
}

}  // namespace weightwire
