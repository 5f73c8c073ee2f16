#include "base/bytes.h"

#include <fmt/format.h>

namespace weightwire {

Result<std::uint8_t> ByteReader::U8() {
  WW_TRY(const auto bytes, Bytes(sizeof(std::uint8_t)));
  return bytes[0];
}

Result<std::uint16_t> ByteReader::U16() {
  WW_TRY(const auto bytes, Bytes(sizeof(std::uint16_t)));
  return LoadU16(bytes.data());
}

Result<std::uint32_t> ByteReader::U32() {
  WW_TRY(const auto bytes, Bytes(sizeof(std::uint32_t)));
  return LoadU32(bytes.data());
}

Result<std::uint64_t> ByteReader::U64() {
  WW_TRY(const auto bytes, Bytes(sizeof(std::uint64_t)));
  return LoadU64(bytes.data());
}

Result<std::uint64_t> ByteReader::Varint() {
  const std::size_t start = position_;
  std::uint64_t value = 0;
  for (int i = 0; i < kMaxVarintBytes; ++i) {
    if (position_ == bytes_.size()) {
      return Error(ErrorCode::kCorrupt, fmt::format("the varint at offset {} is cut off", start));
    }
    const std::uint8_t byte = bytes_[position_++];
    // The tenth byte holds bit 63 alone: anything else would fall off the top.
    if (i == kMaxVarintBytes - 1 && byte > 1) break;
    value |= std::uint64_t{byte & 0x7FU} << (7 * i);
    if ((byte & 0x80U) == 0) {
      if (byte == 0 && i > 0) {
        return Error(ErrorCode::kCorrupt, fmt::format("the varint at offset {} is not in its shortest form", start));
      }
      return value;
    }
  }
  return Error(ErrorCode::kCorrupt, fmt::format("the varint at offset {} does not fit in 64 bits", start));
}

Result<std::span<const std::uint8_t>> ByteReader::Bytes(std::uint64_t count) {
  if (count > remaining()) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("{} bytes wanted at offset {}, but only {} are left", count, position_, remaining()));
  }
  const auto bytes = bytes_.subspan(position_, count);
  position_ += count;
  return bytes;
}

Status ByteReader::ExpectEnd() const {
  if (remaining() == 0) return Ok();
  return Error(ErrorCode::kCorrupt, fmt::format("{} bytes too many after offset {}", remaining(), position_));
}

void ByteWriter::Bytes(std::span<const std::uint8_t> bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }

void ByteWriter::Varint(std::uint64_t value) {
  while (value >= 0x80) {
    out_.push_back(static_cast<std::uint8_t>(value | 0x80U));
    value >>= 7;
  }
  out_.push_back(static_cast<std::uint8_t>(value));
}

}  // namespace weightwire
