// Whole safetensors files in memory, and every type that one may have.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "tensor/dtype.h"
#include "tensor/safetensors.h"

namespace weightwire::testing {

// Tensors in the order given. REQUIRES: each span is as long as its spec says.
inline Result<std::vector<std::uint8_t>> WriteSafetensors(std::span<const TensorView> tensors,
                                                          const Metadata& metadata) {
  std::vector<TensorSpec> specs;
  for (const TensorView& tensor : tensors) specs.push_back(tensor.spec);
  WW_TRY(std::vector<std::uint8_t> file, SafetensorsHeader(specs, metadata));
  for (const TensorView& tensor : tensors) {
    WW_CHECK(tensor.bytes.size() == CheckedByteSize(tensor.spec).value());
    file.insert(file.end(), tensor.bytes.begin(), tensor.bytes.end());
  }
  return file;
}

// In the order of their numbers.
inline std::vector<DType> AllDTypes() {
  std::vector<DType> all;
  while (const auto next = DTypeNumbered(static_cast<std::uint8_t>(all.size() + 1))) all.push_back(*next);
  return all;
}

}  // namespace weightwire::testing
