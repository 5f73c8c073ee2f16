// The loops that the benchmarks compare with: each of them touches every byte.
#include "bench/memory_floor.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace weightwire {
namespace {

TEST(MemoryFloor, ReadsEveryByte) {
  std::vector<std::uint64_t> words(1001);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(words.data());
  for (std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{64}, std::size_t{1000}, std::size_t{8001}}) {
    const std::uint64_t one = ReadOnce(bytes, size);
    const std::uint64_t both = ReadBothOnce(bytes, bytes, size);
    for (std::size_t i = 0; i < size; ++i) {
      auto* at = reinterpret_cast<std::uint8_t*>(words.data()) + i;
      *at = 1;
      EXPECT_NE(ReadOnce(bytes, size), one) << size << " " << i;
      EXPECT_NE(ReadBothOnce(bytes, bytes, size), both) << size << " " << i;
      *at = 0;
    }
  }
}

TEST(MemoryFloor, XorsEveryByte) {
  std::mt19937_64 random(500);
  std::vector<std::uint8_t> a(1000);
  std::vector<std::uint8_t> b(1000);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<std::uint8_t>(random());
    b[i] = static_cast<std::uint8_t>(random());
  }
  std::vector<std::uint8_t> xored(a.size());
  XorInto(a.data(), b.data(), xored.data(), xored.size());
  for (std::size_t i = 0; i < xored.size(); ++i) EXPECT_EQ(xored[i], a[i] ^ b[i]);
}

}  // namespace
}  // namespace weightwire
