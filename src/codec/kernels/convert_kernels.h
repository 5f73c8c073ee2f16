// The inner loops that turn a trainer's numbers into those that are published, once per instruction set. As in
// kernels.h: the scalar ones define the result, the others must equal them bit for bit (convert_kernels_test.cc); pure
// functions over caller-owned memory of any alignment, which may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weightwire {

struct ConvertKernels {
  // F32 to BF16, to the nearest, ties to even; every NaN becomes 0xffff, as in torch.
  void (*to_bf16)(const std::uint8_t* floats, std::size_t count, std::uint8_t* out);

  // F32 divided by `scale`, to F8_E4M3, to the nearest, ties to even; what is larger than 448 becomes 448. NaN keeps
  // its sign.
  void (*to_e4m3)(const std::uint8_t* floats, std::size_t count, float scale, std::uint8_t* out);

  // The bits of the largest absolute value of F32; if there is a NaN, those of one.
  std::uint32_t (*largest)(const std::uint8_t* floats, std::size_t count);
};

const ConvertKernels* ScalarConvertKernels();

}  // namespace weightwire
