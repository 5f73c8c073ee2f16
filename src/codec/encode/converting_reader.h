// Readers of weights in host memory that are published as other numbers, or lie in another order.
//
// Every conversion is exact in one sense: it gives the bits that torch gives on a CPU (`tensor.to(dtype)`), for every
// bit pattern, whatever the instruction set.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "codec/encode/unit_reader.h"
#include "codec/kernels/kernels.h"
#include "tensor/dtype.h"

namespace weightwire {

// A tensor as its owner has it. The memory must outlive what reads it.
struct StridedTensor {
  const std::uint8_t* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  std::vector<std::int64_t> strides;  // elements from one to the next, for each dimension
};

// Scales of blocks of kBlock × kBlock elements of a matrix, row-major; blocks at the edges may be smaller.
struct BlockScales {
  static constexpr std::uint64_t kBlock = 128;
  std::uint64_t columns = 0;  // of the grid of blocks
  std::vector<float> scales;
};
enum class ScaleKind {
  kFloat,       // the block's largest absolute value / 448
  kPowerOfTwo,  // that, to the next power of two upwards
};
// One pass over the tensor. A block of zeros has the scale 1. kInvalidArgument unless it is a matrix of F32 or BF16.
Result<BlockScales> MakeBlockScales(const StridedTensor& tensor, ScaleKind kind, const Kernels& kernels,
                                    ThreadPool& pool);

// The elements of a tensor as numbers of the type `to`: its own (in row-major order), BF16 from F32, or F8_E4M3 from
// F32 or BF16 with `scales`, each element divided by that of its block. kInvalidArgument for any other.
Result<std::unique_ptr<UnitReader>> MakeConvertingReader(StridedTensor tensor, DType to,
                                                         std::optional<BlockScales> scales, const Kernels& kernels);

}  // namespace weightwire
