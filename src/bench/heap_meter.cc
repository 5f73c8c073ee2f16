#include "bench/heap_meter.h"

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

void* Counted(void* memory) noexcept {
  if (memory == nullptr) return nullptr;
  if (counting.load(std::memory_order_relaxed)) {
    const auto size = static_cast<std::int64_t>(::malloc_usable_size(memory));
    const std::int64_t now = in_use.fetch_add(size, std::memory_order_relaxed) + size;
    std::int64_t highest = peak.load(std::memory_order_relaxed);
    while (now > highest && !peak.compare_exchange_weak(highest, now, std::memory_order_relaxed)) {
    }
  }
  return memory;
}

void Free(void* memory) noexcept {
  if (counting.load(std::memory_order_relaxed) && memory != nullptr) {
    in_use.fetch_sub(static_cast<std::int64_t>(::malloc_usable_size(memory)), std::memory_order_relaxed);
  }
  std::free(memory);
}

void* Allocate(std::size_t size) noexcept { return Counted(std::malloc(std::max<std::size_t>(size, 1))); }

// aligned_alloc wants a whole number of alignments.
void* Allocate(std::size_t size, std::align_val_t alignment) noexcept {
  const auto step = static_cast<std::size_t>(alignment);
  return Counted(std::aligned_alloc(step, (std::max<std::size_t>(size, 1) + step - 1) / step * step));
}

void* OrThrow(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Every form: a sanitizer brings its own of those that are missing, and those do not fit ours.
using std::align_val_t;
using std::nothrow_t;
using std::size_t;
void* operator new(size_t size) { return OrThrow(Allocate(size)); }
void* operator new[](size_t size) { return OrThrow(Allocate(size)); }
void* operator new(size_t size, const nothrow_t&) noexcept { return Allocate(size); }
void* operator new[](size_t size, const nothrow_t&) noexcept { return Allocate(size); }
void* operator new(size_t size, align_val_t alignment) { return OrThrow(Allocate(size, alignment)); }
void* operator new[](size_t size, align_val_t alignment) { return OrThrow(Allocate(size, alignment)); }
void* operator new(size_t size, align_val_t alignment, const nothrow_t&) noexcept { return Allocate(size, alignment); }
void* operator new[](size_t size, align_val_t alignment, const nothrow_t&) noexcept {
  return Allocate(size, alignment);
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, const nothrow_t&) noexcept { Free(memory); }
void operator delete[](void* memory, const nothrow_t&) noexcept { Free(memory); }
void operator delete(void* memory, align_val_t) noexcept { Free(memory); }
void operator delete[](void* memory, align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, size_t, align_val_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t, align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, align_val_t, const nothrow_t&) noexcept { Free(memory); }
void operator delete[](void* memory, align_val_t, const nothrow_t&) noexcept { Free(memory); }

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
