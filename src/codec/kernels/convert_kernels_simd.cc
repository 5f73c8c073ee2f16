// The conversions once per instruction set, through highway.
#include "codec/kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels/convert_kernels_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as highway demands.
#include <hwy/highway.h>

#include "codec/format/units.h"
#include "codec/kernels/convert_kernels.h"
#include "codec/kernels/convert_scalar.h"

// The baseline without vectors is convert_kernels_scalar.cc.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace weightwire {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<std::uint32_t> kU32;
const hn::ScalableTag<std::int32_t> kI32;
const hn::ScalableTag<float> kF32;
const hn::Rebind<std::uint8_t, hn::ScalableTag<std::uint32_t>> kOctets;
constexpr std::size_t kStep = hn::MaxLanes(hn::ScalableTag<std::uint32_t>());

using VecU32 = hn::Vec<hn::ScalableTag<std::uint32_t>>;

HWY_INLINE VecU32 LoadWords(const std::uint8_t* floats, std::size_t at) {
  return hn::LoadU(kU32, reinterpret_cast<const std::uint32_t*>(floats) + at);
}

// Numbers leave their words by DemoteTo: all fit, and TruncateTo of highway 1.0.3 is wrong with VBMI.

HWY_INLINE VecU32 Rounded(VecU32 bits, int dropped) {
  const auto odd = hn::And(hn::ShiftRightSame(bits, dropped), hn::Set(kU32, 1));
  return hn::Add(hn::Add(bits, hn::Set(kU32, (1u << (dropped - 1)) - 1)), odd);
}

#include "codec/kernels/convert_bf16-inl.h"

// How far ahead memory is asked for, into the second cache: a few thousand elements are converted at a time, too few
// for the processor to find out by itself that more will follow.
constexpr std::size_t kPrefetchBytes = 16384;

void FloatsToBf16(const std::uint8_t* floats, std::size_t count, std::uint8_t* out) {
  std::size_t i = 0;
  for (; i + kBf16Step <= count; i += kBf16Step) {
    const std::uint8_t* const at = floats + i * sizeof(float);
    for (std::size_t line = 0; line < kBf16Step * sizeof(float); line += 64) {
      __builtin_prefetch(at + kPrefetchBytes + line, 0, 2);
    }
    StoreBf16OfFloats(at, out + i * sizeof(std::uint16_t));
  }
  for (; i < count; ++i) StoreUnit(out, i, ToBf16(LoadUnit<std::uint32_t>(floats, i)));
}

void FloatsToE4m3(const std::uint8_t* floats, std::size_t count, float scale, std::uint8_t* out) {
  const auto divisor = hn::Set(kF32, scale);
  const auto subnormal = hn::Set(kF32, kSubnormalE4m3);
  std::size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    const auto number = hn::Div(hn::BitCast(kF32, LoadWords(floats, i)), divisor);
    const VecU32 bits = hn::BitCast(kU32, number);
    const VecU32 magnitude = hn::And(bits, hn::Set(kU32, kFloatMagnitude));
    const auto is_nan = hn::Gt(magnitude, hn::Set(kU32, kFloatInfinity));
    const auto size = hn::Min(hn::BitCast(kF32, magnitude), hn::Set(kF32, kLargestE4m3));
    const VecU32 small = hn::Sub(hn::BitCast(kU32, hn::Add(size, subnormal)), hn::BitCast(kU32, subnormal));
    const VecU32 normal = hn::Sub(hn::ShiftRight<kMantissaE4m3>(Rounded(hn::BitCast(kU32, size), kMantissaE4m3)),
                                  hn::Set(kU32, kBiasE4m3));
    const auto is_small = hn::RebindMask(kU32, hn::Lt(size, hn::Set(kF32, kLeastNormalE4m3)));
    const VecU32 code = hn::IfThenElse(is_nan, hn::Set(kU32, 0x7f), hn::IfThenElse(is_small, small, normal));
    const VecU32 sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(kU32, 0x80));
    hn::StoreU(hn::DemoteTo(kOctets, hn::BitCast(kI32, hn::Or(sign, code))), kOctets, out + i);
  }
  for (; i < count; ++i) out[i] = ToE4m3(LoadUnit<float>(floats, i) / scale);
}

std::uint32_t Largest(const std::uint8_t* floats, std::size_t count) {
  VecU32 largest = hn::Zero(kU32);
  std::size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    largest = hn::Max(largest, hn::And(LoadWords(floats, i), hn::Set(kU32, kFloatMagnitude)));
  }
  std::uint32_t result = hn::GetLane(hn::MaxOfLanes(kU32, largest));
  for (; i < count; ++i) result = std::max(result, LoadUnit<std::uint32_t>(floats, i) & kFloatMagnitude);
  return result;
}

}  // namespace

const ConvertKernels* GetConvertKernels() {
  static constexpr ConvertKernels kKernels = {FloatsToBf16, FloatsToE4m3, Largest};
  return &kKernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace weightwire
HWY_AFTER_NAMESPACE();
#endif  // not HWY_SCALAR
