// What the codec is measured against: memory read once and nothing else, and XOR as fast as memory allows. With the
// widest vectors of this machine, whatever WEIGHTWIRE_ISA says.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weightwire {

// A sum that depends on every byte, so that no read can be left out. REQUIRES: aligned to 8 bytes.
std::uint64_t ReadOnce(const std::uint8_t* bytes, std::size_t size);
// The same for two arrays of one size, side by side.
std::uint64_t ReadBothOnce(const std::uint8_t* a, const std::uint8_t* b, std::size_t size);

// to[i] = a[i] ^ b[i]; `to` may be one of them.
void XorInto(const std::uint8_t* a, const std::uint8_t* b, std::uint8_t* to, std::size_t size);

// The instruction set they use.
const char* MemoryFloorIsa();

}  // namespace weightwire
