// Bytes to texts and integers and back: little-endian loads and stores, checked arithmetic, and a bounds-checked reader
// and a writer for the fixed-width integers and varints of our formats.
//
// A varint is unsigned LEB128: seven bits a byte, lowest first, the top bit set on all but the last byte. Only the
// shortest form is valid, so that a number has exactly one encoding and equal values mean equal bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weightwire {

// Tensor data is little-endian in files and is compared in memory as it lies there.
static_assert(std::endian::native == std::endian::little, "weightwire needs a little-endian machine");

// The bytes of a text and the text of bytes, where they lie.
[[nodiscard]] inline std::span<const std::uint8_t> BytesOf(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}
[[nodiscard]] inline std::string_view TextOf(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Loads and stores of a fixed width at any alignment.
// REQUIRES: as many bytes at the pointer as the name says.
[[nodiscard]] inline std::uint16_t LoadU16(const std::uint8_t* from) {
  std::uint16_t value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
[[nodiscard]] inline std::uint32_t LoadU32(const std::uint8_t* from) {
  std::uint32_t value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
[[nodiscard]] inline std::uint64_t LoadU64(const std::uint8_t* from) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
inline void StoreU16(std::uint8_t* to, std::uint16_t value) { std::memcpy(to, &value, sizeof(value)); }
inline void StoreU32(std::uint8_t* to, std::uint32_t value) { std::memcpy(to, &value, sizeof(value)); }
inline void StoreU64(std::uint8_t* to, std::uint64_t value) { std::memcpy(to, &value, sizeof(value)); }

// Nothing when the true result does not fit.
[[nodiscard]] inline std::optional<std::uint64_t> CheckedAdd(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}
[[nodiscard]] inline std::optional<std::uint64_t> CheckedMul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

inline constexpr int kMaxVarintBytes = 10;

// Reads from the front of bytes it does not own. After an error the position is unspecified; stop reading.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  [[nodiscard]] std::size_t position() const { return position_; }
  [[nodiscard]] std::size_t remaining() const { return bytes_.size() - position_; }

  Result<std::uint8_t> U8();
  Result<std::uint16_t> U16();
  Result<std::uint32_t> U32();
  Result<std::uint64_t> U64();
  Result<std::uint64_t> Varint();

  // The next `count` bytes, still owned by whoever owns the reader's bytes.
  Result<std::span<const std::uint8_t>> Bytes(std::uint64_t count);

  // An error unless every byte has been read: bytes that mean nothing are not accepted.
  Status ExpectEnd() const;

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t position_ = 0;
};

// Appends to a vector it does not own.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::uint8_t>& out) : out_(out) {}

  [[nodiscard]] std::size_t position() const { return out_.size(); }

  void U8(std::uint8_t value) { out_.push_back(value); }
  void U16(std::uint16_t value) { StoreU16(Grow(sizeof(value)), value); }
  void U32(std::uint32_t value) { StoreU32(Grow(sizeof(value)), value); }
  void U64(std::uint64_t value) { StoreU64(Grow(sizeof(value)), value); }
  void Varint(std::uint64_t value);
  void Bytes(std::span<const std::uint8_t> bytes);

 private:
  std::uint8_t* Grow(std::size_t count) {
    out_.resize(out_.size() + count);
    return out_.data() + out_.size() - count;
  }

  std::vector<std::uint8_t>& out_;
};

}  // namespace weightwire
