// The conversions in plain C++, the definition the others are compared with.
#include "codec/format/units.h"
#include "codec/kernels/convert_kernels.h"
#include "codec/kernels/convert_scalar.h"

namespace weightwire {
namespace {

void FloatsToBf16(const std::uint8_t* floats, std::size_t count, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i) StoreUnit(out, i, ToBf16(LoadUnit<std::uint32_t>(floats, i)));
}

void FloatsToE4m3(const std::uint8_t* floats, std::size_t count, float scale, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = ToE4m3(LoadUnit<float>(floats, i) / scale);
}

std::uint32_t Largest(const std::uint8_t* floats, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, LoadUnit<std::uint32_t>(floats, i) & kFloatMagnitude);
  }
  return largest;
}

}  // namespace

const ConvertKernels* ScalarConvertKernels() {
  static constexpr ConvertKernels kKernels = {FloatsToBf16, FloatsToE4m3, Largest};
  return &kKernels;
}

}  // namespace weightwire
