// How much memory something takes beyond what was there: the largest growth of the heap while a HeapMeter lives.
//
// A program that uses it has its operator new and delete replaced by counting ones. Without a meter they count nothing
// and cost one load more.
#pragma once

#include <cstdint>

namespace weightwire {

// At most one exists at a time; all threads are counted.
class HeapMeter {
 public:
  HeapMeter();
  ~HeapMeter();
  HeapMeter(const HeapMeter&) = delete;
  HeapMeter& operator=(const HeapMeter&) = delete;

  // The largest number of bytes allocated and not yet freed since construction.
  [[nodiscard]] std::uint64_t peak_bytes() const;
};

}  // namespace weightwire
