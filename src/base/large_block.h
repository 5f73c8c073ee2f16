// A block of memory of megabytes, not filled, in large pages where the system gives them: these are read and made
// faster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace weightwire {

// Owns the memory. Movable; the bytes stay where they are.
class LargeBlock {
 public:
  static constexpr std::size_t kPage = std::size_t{1} << 21;

  // Without memory.
  LargeBlock() = default;
  // At least so many bytes; none if that is more than there is.
  static LargeBlock Allocate(std::size_t bytes);

  [[nodiscard]] std::byte* begin() const { return memory_.get(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  explicit operator bool() const { return memory_ != nullptr; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{kPage}); }
  };

  LargeBlock(std::byte* memory, std::size_t size) : memory_(memory), size_(size) {}

  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace weightwire
