#include "tensor/tensor_spec.h"

#include <fmt/format.h>

#include "base/limits.h"
#include "tensor/json.h"

namespace weightwire {

std::string Describe(const TensorSpec& spec) {
  return fmt::format("{} [{}]", NameOf(spec.dtype), fmt::join(spec.shape, ", "));
}

Status CheckName(std::string_view name) {
  if (name.size() > kMaxNameBytes) {
    return Error(ErrorCode::kLimit, fmt::format("the tensor name {} is {} bytes long; the limit is {}", Quoted(name),
                                                name.size(), kMaxNameBytes));
  }
  if (!IsUtf8(name)) return Error(ErrorCode::kCorrupt, "a tensor name is not valid UTF-8");
  if (name == "__metadata__") {
    return Error(ErrorCode::kInvalidArgument, "a tensor cannot be named \"__metadata__\": the format reserves it");
  }
  return Ok();
}

Result<std::uint64_t> CheckedByteSize(const TensorSpec& spec) {
  WW_RETURN_IF_ERROR(CheckName(spec.name));
  if (spec.shape.size() > kMaxRank) {
    return Error(ErrorCode::kLimit, fmt::format("tensor {} has {} dimensions; the limit is {}", Quoted(spec.name),
                                                spec.shape.size(), kMaxRank));
  }
  auto size = ByteSize(spec.dtype, spec.shape);
  if (!size.ok()) return size.error().In("tensor " + Quoted(spec.name));
  return size;
}

}  // namespace weightwire
