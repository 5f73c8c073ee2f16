#include "base/huge_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <utility>

namespace weightwire {

Result<HugeBuffer> HugeBuffer::Allocate(std::size_t size) {
  constexpr std::size_t kPage = std::size_t{1} << 21;
  const std::size_t map_size = size + kPage;
  void* map = ::mmap(nullptr, map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return Error(ErrorCode::kIo, fmt::format("there is not enough memory for {} bytes", size));
  auto* bytes = static_cast<std::uint8_t*>(map);
  std::uint8_t* begin = bytes + (kPage - reinterpret_cast<std::uintptr_t>(map) % kPage) % kPage;
  ::madvise(begin, size, MADV_HUGEPAGE);
  std::memset(begin, 0, size);
  return HugeBuffer(map, map_size, begin, size);
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept
    : map_(std::exchange(other.map_, nullptr)), map_size_(other.map_size_), begin_(other.begin_), size_(other.size_) {}

HugeBuffer::~HugeBuffer() {
  if (map_ != nullptr) ::munmap(map_, map_size_);
}

}  // namespace weightwire
