#include "base/huge_buffer.h"

#include <fmt/format.h>

#include <cstring>

namespace weightwire {

Result<HugeBuffer> HugeBuffer::Allocate(std::size_t size, Pages pages) {
  LargeBlock block = LargeBlock::Allocate(size, pages);
  if (!block) return Error(ErrorCode::kIo, fmt::format("there is not enough memory for {} bytes", size));
  std::memset(block.begin(), 0, size);
  return HugeBuffer(std::move(block), size);
}

}  // namespace weightwire
