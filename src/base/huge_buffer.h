// Memory as a trainer or an engine holds its weights in: our own, zeroed and touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/large_block.h"
#include "base/result.h"

namespace weightwire {

// Movable; the bytes stay where they are.
class HugeBuffer {
 public:
  // kIo when there is not enough memory.
  static Result<HugeBuffer> Allocate(std::size_t size, Pages pages = Pages::kLarge);

  [[nodiscard]] std::span<std::uint8_t> bytes() const {
    return {reinterpret_cast<std::uint8_t*>(block_.begin()), size_};
  }

 private:
  HugeBuffer(LargeBlock block, std::size_t size) : block_(std::move(block)), size_(size) {}

  LargeBlock block_;
  std::size_t size_;
};

}  // namespace weightwire
