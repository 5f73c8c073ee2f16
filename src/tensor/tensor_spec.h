// What a tensor is, without its data: name, type and shape.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace weightwire {

struct TensorSpec {
  std::string name;  // UTF-8
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;  // row-major; empty for a scalar, with a zero for an empty tensor

  bool operator==(const TensorSpec&) const = default;
};

// "BF16 [2, 3]", as errors show it.
[[nodiscard]] std::string Describe(const TensorSpec& spec);

// A name that can be a key of a safetensors header: UTF-8, at most kMaxNameBytes, not the reserved "__metadata__".
Status CheckName(std::string_view name);

// The size of the tensor's data, once its name, rank and size are within the limits. The one place where specs from
// outside are checked.
Result<std::uint64_t> CheckedByteSize(const TensorSpec& spec);

}  // namespace weightwire
