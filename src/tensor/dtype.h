// The element types of the safetensors format, and what follows from a type: its name, its width, the size of a tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"

namespace weightwire {

// The numbers are pinned: delta files carry them. They rise in the order of the safetensors library's own list (by
// alignment), which is the order its writer sorts by, so ours does too.
enum class DType : std::uint8_t {
  kBool = 1,
  kF4 = 2,
  kF6E2M3 = 3,
  kF6E3M2 = 4,
  kU8 = 5,
  kI8 = 6,
  kF8E5M2 = 7,
  kF8E4M3 = 8,
  kF8E8M0 = 9,
  kF8E4M3Fnuz = 10,
  kF8E5M2Fnuz = 11,
  kI16 = 12,
  kU16 = 13,
  kF16 = 14,
  kBF16 = 15,
  kI32 = 16,
  kU32 = 17,
  kF32 = 18,
  kC64 = 19,
  kF64 = 20,
  kI64 = 21,
  kU64 = 22,
};

// The name as safetensors headers spell it ("BF16", "F8_E4M3").
[[nodiscard]] std::string_view NameOf(DType dtype);
[[nodiscard]] std::optional<DType> DTypeNamed(std::string_view name);

// The type with that number in a file, if there is one.
[[nodiscard]] std::optional<DType> DTypeNumbered(std::uint8_t number);

[[nodiscard]] int BitsPer(DType dtype);

// Whether several elements share a byte.
[[nodiscard]] bool IsPacked(DType dtype);

// Width in bytes of the unit that is compared and coded: 1, 2, 4 or 8. An element, except for packed types, whose unit
// is the byte. A tensor is always a whole number of units.
[[nodiscard]] int UnitBytes(DType dtype);

// The product of the dimensions; 1 for a scalar. kLimit when it does not fit in 64 bits.
Result<std::uint64_t> ElementCount(std::span<const std::uint64_t> shape);

// Size of a tensor's data. kLimit above kMaxTensorBytes; kCorrupt when a packed type does not fill its last byte, which
// the format does not allow.
Result<std::uint64_t> ByteSize(DType dtype, std::span<const std::uint64_t> shape);

}  // namespace weightwire
