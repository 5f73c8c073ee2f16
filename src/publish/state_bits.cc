#include "publish/state_bits.h"

#include <algorithm>

#include "tensor/dtype.h"

namespace weightwire {

Status CopyBits(const StateBits& bits, std::size_t tensor, std::uint8_t* to) {
  const UnitReader* reader = bits.reader(tensor);
  if (reader == nullptr) {
    std::copy(bits.tensors[tensor].begin(), bits.tensors[tensor].end(), to);
    return Ok();
  }
  const int unit_bytes = UnitBytes(bits.layout->tensors()[tensor].dtype);
  return ReadUnits(*reader, 0, bits.layout->byte_size(tensor) / static_cast<std::uint64_t>(unit_bytes), unit_bytes, to);
}

}  // namespace weightwire
