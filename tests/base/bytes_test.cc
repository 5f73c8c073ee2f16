#include "base/bytes.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <limits>

namespace weightwire {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

std::vector<std::uint8_t> VarintBytes(std::uint64_t value) {
  std::vector<std::uint8_t> bytes;
  ByteWriter(bytes).Varint(value);
  return bytes;
}

TEST(LittleEndian, LowestByteFirstAtAnyAlignment) {
  const std::array<std::uint8_t, 9> bytes = {0xFF, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(LoadU16(&bytes[1]), 0x0201U);
  EXPECT_EQ(LoadU32(&bytes[1]), 0x04030201U);
  EXPECT_EQ(LoadU64(&bytes[1]), 0x0807060504030201U);

  std::array<std::uint8_t, 9> stored = {0xFF};
  StoreU64(&stored[1], 0x0807060504030201U);
  EXPECT_EQ(stored, bytes);
}

TEST(CheckedArithmetic, ReturnsNothingOnOverflow) {
  EXPECT_EQ(CheckedAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedMul(std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 1), kMax - 0xFFFFFFFFU);
  EXPECT_EQ(CheckedMul(std::uint64_t{1} << 32, std::uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(CheckedMul(kMax, 0), 0U);
}

TEST(Varint, KnownEncodings) {
  EXPECT_EQ(VarintBytes(0), (std::vector<std::uint8_t>{0}));
  EXPECT_EQ(VarintBytes(127), (std::vector<std::uint8_t>{0x7F}));
  EXPECT_EQ(VarintBytes(128), (std::vector<std::uint8_t>{0x80, 1}));
  EXPECT_EQ(VarintBytes(300), (std::vector<std::uint8_t>{0xAC, 2}));
  EXPECT_EQ(VarintBytes(kMax), (std::vector<std::uint8_t>{255, 255, 255, 255, 255, 255, 255, 255, 255, 1}));
}

RC_GTEST_PROP(VarintProperty, ReadsBackWhatWasWritten, ()) {
  // A random bit length first: plain random 64-bit numbers are nearly all ten bytes long.
  const auto bits = *rc::gen::inRange(0, 65);
  const auto value = bits == 0 ? 0 : *rc::gen::arbitrary<std::uint64_t>() >> (64 - bits);
  const auto bytes = VarintBytes(value);
  ByteReader reader(bytes);
  const auto read = reader.Varint();
  RC_ASSERT(read.ok());
  RC_ASSERT(read.value() == value);
  RC_ASSERT(reader.ExpectEnd().ok());
}

// One number, one encoding: whatever the reader accepts is what the writer would have written.
RC_GTEST_PROP(VarintProperty, AcceptsOnlyTheShortestForm, (std::vector<std::uint8_t> bytes)) {
  for (auto& byte : bytes) {
    if (*rc::gen::arbitrary<bool>()) byte = *rc::gen::element<std::uint8_t>(0x00, 0x01, 0x80, 0x81, 0xFF);
  }
  ByteReader reader(bytes);
  const auto value = reader.Varint();
  if (!value.ok()) return;
  bytes.resize(reader.position());
  RC_ASSERT(bytes == VarintBytes(value.value()));
}

std::string VarintError(const std::vector<std::uint8_t>& bytes) {
  const auto value = ByteReader(bytes).Varint();
  return value.ok() ? "accepted" : value.error().message();
}

TEST(Varint, RefusesNonCanonicalForms) {
  EXPECT_EQ(VarintError({}), "the varint at offset 0 is cut off");
  EXPECT_EQ(VarintError({0x80}), "the varint at offset 0 is cut off");
  EXPECT_EQ(VarintError({0x80, 0}), "the varint at offset 0 is not in its shortest form");
  EXPECT_EQ(VarintError({255, 255, 255, 255, 255, 255, 255, 255, 255, 2}),
            "the varint at offset 0 does not fit in 64 bits");
  EXPECT_EQ(VarintError({255, 255, 255, 255, 255, 255, 255, 255, 255, 0x81, 0}),
            "the varint at offset 0 does not fit in 64 bits");
}

TEST(ByteReader, ReadsEveryWidthTheWriterWrites) {
  std::vector<std::uint8_t> bytes;
  ByteWriter writer(bytes);
  writer.U8(0x12);
  writer.U16(0x3456);
  writer.U32(0x789ABCDE);
  writer.U64(0x0123456789ABCDEF);
  EXPECT_EQ(bytes, (std::vector<std::uint8_t>{0x12, 0x56, 0x34, 0xDE, 0xBC, 0x9A, 0x78, 0xEF, 0xCD, 0xAB, 0x89, 0x67,
                                              0x45, 0x23, 0x01}));
  ByteReader reader(bytes);
  EXPECT_EQ(reader.U8().value(), 0x12U);
  EXPECT_EQ(reader.U16().value(), 0x3456U);
  EXPECT_EQ(reader.U32().value(), 0x789ABCDEU);
  EXPECT_EQ(reader.U64().value(), 0x0123456789ABCDEFU);
  EXPECT_TRUE(reader.ExpectEnd().ok());
}

TEST(ByteReader, NeverReadsBeyondItsBytes) {
  std::vector<std::uint8_t> bytes;
  ByteWriter writer(bytes);
  writer.U16(0x1234);
  writer.Bytes(std::array<std::uint8_t, 2>{7, 8});
  EXPECT_EQ(writer.position(), 4U);

  ByteReader reader(bytes);
  EXPECT_EQ(reader.U16().value(), 0x1234U);
  EXPECT_EQ(reader.remaining(), 2U);
  EXPECT_EQ(reader.ExpectEnd().error().message(), "2 bytes too many after offset 2");
  const auto too_wide = reader.U32();
  ASSERT_FALSE(too_wide.ok());
  EXPECT_EQ(too_wide.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(too_wide.error().message(), "4 bytes wanted at offset 2, but only 2 are left");
  EXPECT_FALSE(reader.Bytes(kMax).ok());
  EXPECT_EQ(reader.Bytes(2).value()[1], 8U);
  EXPECT_TRUE(reader.ExpectEnd().ok());
}

}  // namespace
}  // namespace weightwire
