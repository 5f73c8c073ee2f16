// Bytes for objects, and expectations on results.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/result.h"

namespace weightwire::testing {

// More than any object of these tests has, for Get().
constexpr std::uint64_t kSmall = std::uint64_t{1} << 20;

using Bytes = std::vector<std::uint8_t>;

inline Bytes BytesOf(std::string_view text) { return {text.begin(), text.end()}; }

inline Bytes RandomBytes(std::size_t count, std::uint64_t seed) {
  SeededRandom random(seed);
  Bytes bytes(count);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.Next());
  return bytes;
}

template <typename T>
bool Succeeds(const T& result) {
  if (!result.ok()) ADD_FAILURE() << result.error().message();
  return result.ok();
}

template <typename T>
void ExpectError(const T& result, ErrorCode code) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), code) << result.error().message();
}

}  // namespace weightwire::testing
