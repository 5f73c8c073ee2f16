// Memory for a state of a model: zeroed and touched.
//
// It is mapped and not taken from the heap, so that it does not change what the heap gives to others: what is staged
// lies in pages the kernel has just zeroed, which are in the cache, or in used ones, which are not (a tenth of apply's
// time).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/large_block.h"
#include "base/result.h"

namespace weightwire {

// Ordinary ones are for measuring what memory costs that others have taken.
enum class Pages : std::uint8_t { kLarge, kOrdinary };

// Movable; the bytes stay where they are.
class HugeBuffer {
 public:
  // kIo when there is not enough memory.
  static Result<HugeBuffer> Allocate(std::size_t size, Pages pages = Pages::kLarge);

  [[nodiscard]] std::span<std::uint8_t> bytes() const { return {begin_, size_}; }

 private:
  struct Unmap {
    std::size_t size;
    void operator()(std::uint8_t* map) const;
  };
  using Map = std::unique_ptr<std::uint8_t, Unmap>;

  HugeBuffer(Map map, std::uint8_t* begin, std::size_t size) : map_(std::move(map)), begin_(begin), size_(size) {}

  Map map_;
  std::uint8_t* begin_;
  std::size_t size_;
};

}  // namespace weightwire
