#include "base/large_block.h"

#include <sys/mman.h>

#include <limits>

namespace weightwire {

LargeBlock LargeBlock::Allocate(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() / 2 - kPage) return {};
  const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
  auto* memory = static_cast<std::byte*>(::operator new (size, std::align_val_t{kPage}, std::nothrow));
  if (memory == nullptr) return {};
  ::madvise(memory, size, MADV_HUGEPAGE);  // only a wish
  return {memory, size};
}

}  // namespace weightwire
