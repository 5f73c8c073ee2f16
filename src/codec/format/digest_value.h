// The digest of a tensor as delta files, records and journals store it: two sums modulo 2^61 - 1 (spec/FORMAT.md,
// "Digest"). codec/digest computes digests; this is only the value, which adds up over boxes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace weightwire {

inline constexpr std::uint64_t kDigestPrime = (std::uint64_t{1} << 61) - 1;
inline constexpr std::size_t kDigestBytes = 16;

struct Digest {
  std::array<std::uint64_t, 2> sums{};  // each below 2^61 - 1

  [[nodiscard]] Digest operator+(const Digest& other) const;
  [[nodiscard]] Digest operator-(const Digest& other) const;
  Digest& operator+=(const Digest& other) { return *this = *this + other; }

  // 16 bytes, the first sum first, little-endian.
  [[nodiscard]] std::array<std::uint8_t, kDigestBytes> ToBytes() const;
  static Digest FromBytes(std::span<const std::uint8_t, kDigestBytes> bytes);
  [[nodiscard]] std::string ToHex() const;

  friend bool operator==(const Digest&, const Digest&) = default;
};

}  // namespace weightwire
