#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/limits.h"
#include "support/safetensors_file.h"

namespace weightwire {
namespace {

TEST(DType, NumbersNamesAndWidthsArePinned) {
  struct Row {
    int number;
    std::string name;
    int bits;
    int unit_bytes;
    bool operator==(const Row&) const = default;
  };
  const std::vector<Row> expected = {
      {1, "BOOL", 8, 1},    {2, "F4", 4, 1},           {3, "F6_E2M3", 6, 1},      {4, "F6_E3M2", 6, 1},
      {5, "U8", 8, 1},      {6, "I8", 8, 1},           {7, "F8_E5M2", 8, 1},      {8, "F8_E4M3", 8, 1},
      {9, "F8_E8M0", 8, 1}, {10, "F8_E4M3FNUZ", 8, 1}, {11, "F8_E5M2FNUZ", 8, 1}, {12, "I16", 16, 2},
      {13, "U16", 16, 2},   {14, "F16", 16, 2},        {15, "BF16", 16, 2},       {16, "I32", 32, 4},
      {17, "U32", 32, 4},   {18, "F32", 32, 4},        {19, "C64", 64, 8},        {20, "F64", 64, 8},
      {21, "I64", 64, 8},   {22, "U64", 64, 8},
  };
  std::vector<Row> actual;
  for (const DType dtype : testing::AllDTypes()) {
    actual.push_back({static_cast<int>(dtype), std::string(NameOf(dtype)), BitsPer(dtype), UnitBytes(dtype)});
  }
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(actual[i], expected[i]) << expected[i].name;
}

TEST(DType, FindsTypesByNameAndNumber) {
  for (const DType dtype : testing::AllDTypes()) {
    EXPECT_EQ(DTypeNamed(NameOf(dtype)), dtype);
    EXPECT_EQ(DTypeNumbered(static_cast<std::uint8_t>(dtype)), dtype);
  }
  EXPECT_EQ(DTypeNamed("bf16"), std::nullopt);
  EXPECT_EQ(DTypeNamed(""), std::nullopt);
  EXPECT_EQ(DTypeNumbered(0), std::nullopt);
  EXPECT_EQ(DTypeNumbered(23), std::nullopt);
}

using Shape = std::vector<std::uint64_t>;

TEST(ByteSize, ScalarsEmptyAndLargeTensors) {
  EXPECT_EQ(ByteSize(DType::kF32, Shape{}).value(), 4U);
  EXPECT_EQ(ByteSize(DType::kF32, Shape{3, 0, 5}).value(), 0U);
  EXPECT_EQ(ByteSize(DType::kBF16, Shape{1 << 20, 1 << 20}).value(), std::uint64_t{1} << 41);
  EXPECT_EQ(ByteSize(DType::kC64, Shape{2}).value(), 16U);
}

TEST(ByteSize, PackedTypesFillTheirBytes) {
  EXPECT_EQ(ByteSize(DType::kF4, Shape{3, 2}).value(), 3U);
  EXPECT_EQ(ByteSize(DType::kF6E2M3, Shape{4}).value(), 3U);
  const auto odd = ByteSize(DType::kF4, Shape{3});
  ASSERT_FALSE(odd.ok());
  EXPECT_EQ(odd.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(odd.error().message(), "3 elements of F4 do not fill a whole number of bytes");
  EXPECT_FALSE(ByteSize(DType::kF6E3M2, Shape{6}).ok());
}

TEST(ByteSize, OverflowIsAnErrorNotASmallSize) {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 32;
  for (const Shape& shape : {Shape{kHalf, kHalf}, Shape{std::uint64_t{1} << 62}, Shape{kMaxTensorBytes / 4 + 1}}) {
    const auto size = ByteSize(DType::kF32, shape);
    ASSERT_FALSE(size.ok());
    EXPECT_EQ(size.error().code(), ErrorCode::kLimit);
  }
  EXPECT_EQ(ByteSize(DType::kU8, Shape{kMaxTensorBytes}).value(), kMaxTensorBytes);
}

TEST(ByteSize, ATensorWithAZeroDimensionHasNoBytes) {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 32;
  for (const Shape& shape : {Shape{0, kHalf, kHalf}, Shape{kHalf, 0, kHalf}, Shape{kHalf, kHalf, 0}}) {
    const auto size = ByteSize(DType::kF32, shape);
    ASSERT_TRUE(size.ok()) << size.error().message();
    EXPECT_EQ(size.value(), 0u);
  }
}

}  // namespace
}  // namespace weightwire
