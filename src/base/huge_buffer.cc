#include "base/huge_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <limits>

namespace weightwire {

void HugeBuffer::Unmap::operator()(std::uint8_t* map) const { ::munmap(map, size); }

Result<HugeBuffer> HugeBuffer::Allocate(std::size_t size, Pages pages) {
  constexpr std::size_t kPage = LargeBlock::kPage;
  const Error too_large(ErrorCode::kIo, fmt::format("there is not enough memory for {} bytes", size));
  if (size > std::numeric_limits<std::size_t>::max() - kPage) return too_large;
  const std::size_t map_size = size + kPage;
  void* memory = ::mmap(nullptr, map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return too_large;
  Map map(static_cast<std::uint8_t*>(memory), Unmap{map_size});
  std::uint8_t* begin = map.get() + (kPage - reinterpret_cast<std::uintptr_t>(memory) % kPage) % kPage;
  ::madvise(begin, size, pages == Pages::kLarge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // only a wish
  std::memset(begin, 0, size);
  return HugeBuffer(std::move(map), begin, size);
}

}  // namespace weightwire
