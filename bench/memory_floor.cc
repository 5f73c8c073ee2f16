// The memory's own speed for benchmarks in Python: the floor that `weightwire-bench` has, as a library of one function.
#include "bench/memory_floor.h"

extern "C" __attribute__((visibility("default"))) std::uint64_t weightwire_read_once(const std::uint8_t* bytes,
                                                                                     std::size_t size) {
  return weightwire::ReadOnce(bytes, size);
}
