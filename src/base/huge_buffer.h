// Memory as a trainer or an engine holds its weights in: our own, touched, in large pages where the system gives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace weightwire {

// Zeroed. Movable; the bytes stay where they are.
class HugeBuffer {
 public:
  // kIo when there is not enough memory.
  static Result<HugeBuffer> Allocate(std::size_t size);

  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) = delete;
  ~HugeBuffer();

  [[nodiscard]] std::span<std::uint8_t> bytes() const { return {begin_, size_}; }

 private:
  HugeBuffer(void* map, std::size_t map_size, std::uint8_t* begin, std::size_t size)
      : map_(map), map_size_(map_size), begin_(begin), size_(size) {}

  void* map_;
  std::size_t map_size_;
  std::uint8_t* begin_;
  std::size_t size_;
};

}  // namespace weightwire
