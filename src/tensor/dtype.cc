#include "tensor/dtype.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/limits.h"

namespace weightwire {
namespace {

struct Traits {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr std::array<Traits, 22> kTraits = {{
    {DType::kBool, "BOOL", 8},
    {DType::kF4, "F4", 4},
    {DType::kF6E2M3, "F6_E2M3", 6},
    {DType::kF6E3M2, "F6_E3M2", 6},
    {DType::kU8, "U8", 8},
    {DType::kI8, "I8", 8},
    {DType::kF8E5M2, "F8_E5M2", 8},
    {DType::kF8E4M3, "F8_E4M3", 8},
    {DType::kF8E8M0, "F8_E8M0", 8},
    {DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {DType::kI16, "I16", 16},
    {DType::kU16, "U16", 16},
    {DType::kF16, "F16", 16},
    {DType::kBF16, "BF16", 16},
    {DType::kI32, "I32", 32},
    {DType::kU32, "U32", 32},
    {DType::kF32, "F32", 32},
    {DType::kC64, "C64", 64},
    {DType::kF64, "F64", 64},
    {DType::kI64, "I64", 64},
    {DType::kU64, "U64", 64},
}};

constexpr bool RowsAreInNumberOrder() {
  for (std::size_t i = 0; i < kTraits.size(); ++i) {
    if (static_cast<std::size_t>(kTraits[i].dtype) != i + 1) return false;
  }
  return true;
}
static_assert(RowsAreInNumberOrder(), "TraitsOf and DTypeNumbered use the number as an index");

const Traits& TraitsOf(DType dtype) { return kTraits[static_cast<std::size_t>(dtype) - 1]; }

}  // namespace

std::string_view NameOf(DType dtype) { return TraitsOf(dtype).name; }

std::optional<DType> DTypeNamed(std::string_view name) {
  for (const Traits& traits : kTraits) {
    if (traits.name == name) return traits.dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeNumbered(std::uint8_t number) {
  if (number < 1 || number > kTraits.size()) return std::nullopt;
  return static_cast<DType>(number);
}

int BitsPer(DType dtype) { return TraitsOf(dtype).bits; }

bool IsPacked(DType dtype) { return BitsPer(dtype) < 8; }

int UnitBytes(DType dtype) { return IsPacked(dtype) ? 1 : BitsPer(dtype) / 8; }

Result<std::uint64_t> ElementCount(std::span<const std::uint64_t> shape) {
  // Whatever the order: what is before a 0 does not count.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return std::uint64_t{0};
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape) {
    const auto product = CheckedMul(count, extent);
    if (!product) {
      return Error(ErrorCode::kLimit, fmt::format("the shape [{}] has 2^64 elements or more", fmt::join(shape, ", ")));
    }
    count = *product;
  }
  return count;
}

Result<std::uint64_t> ByteSize(DType dtype, std::span<const std::uint64_t> shape) {
  WW_TRY(const std::uint64_t count, ElementCount(shape));
  const auto bits = CheckedMul(count, static_cast<std::uint64_t>(BitsPer(dtype)));
  if (!bits || *bits / 8 > kMaxTensorBytes) {
    return Error(ErrorCode::kLimit, fmt::format("{} elements of {} are more than the limit of {} bytes for one tensor",
                                                count, NameOf(dtype), kMaxTensorBytes));
  }
  if (*bits % 8 != 0) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("{} elements of {} do not fill a whole number of bytes", count, NameOf(dtype)));
  }
  return *bits / 8;
}

}  // namespace weightwire
