// A tensor that owns its data, as tests make and change it.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor_spec.h"

namespace weightwire {

// REQUIRES of whoever makes one: bytes.size() is what the spec says.
struct OwnedTensor {
  TensorSpec spec;
  std::vector<std::uint8_t> bytes;
};

}  // namespace weightwire
