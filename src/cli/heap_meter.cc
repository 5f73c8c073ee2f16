#include "cli/heap_meter.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "base/check.h"

namespace {

// operator new has no object to keep these in.
std::atomic<bool> counting{false};
std::atomic<std::int64_t> in_use{0};
std::atomic<std::int64_t> peak{0};

void* Counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  if (counting.load(std::memory_order_relaxed)) {
    const auto size = static_cast<std::int64_t>(::malloc_usable_size(memory));
    const std::int64_t now = in_use.fetch_add(size, std::memory_order_relaxed) + size;
    std::int64_t highest = peak.load(std::memory_order_relaxed);
    while (now > highest && !peak.compare_exchange_weak(highest, now, std::memory_order_relaxed)) {
    }
  }
  return memory;
}

void Free(void* memory) {
  if (counting.load(std::memory_order_relaxed) && memory != nullptr) {
    in_use.fetch_sub(static_cast<std::int64_t>(::malloc_usable_size(memory)), std::memory_order_relaxed);
  }
  std::free(memory);
}

// aligned_alloc wants a whole number of alignments.
void* Aligned(std::size_t size, std::align_val_t alignment) {
  const auto step = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(step, (std::max<std::size_t>(size, 1) + step - 1) / step * step);
}

}  // namespace

// The other forms of the standard library call these.
void* operator new(std::size_t size) { return Counted(std::malloc(std::max<std::size_t>(size, 1))); }
void* operator new(std::size_t size, std::align_val_t alignment) { return Counted(Aligned(size, alignment)); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete(void* memory, std::size_t) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { Free(memory); }

namespace weightwire {

HeapMeter::HeapMeter() {
  WW_CHECK(!counting.load());
  in_use.store(0);
  peak.store(0);
  counting.store(true);
}

HeapMeter::~HeapMeter() { counting.store(false); }

std::uint64_t HeapMeter::peak_bytes() const {  // NOLINT(readability-convert-member-functions-to-static)
  return static_cast<std::uint64_t>(peak.load());
}

}  // namespace weightwire
