#include "store/read_back.h"

#include <fmt/format.h>

#include <algorithm>

namespace weightwire {
namespace {

Error StillUnknown(const Store& store, std::string_view key, const Error& why) {
  return {ErrorCode::kUnknownOutcome, fmt::format("it is not known whether {} was committed to {}; ask again: {}", key,
                                                  store.Name(), why.message())};
}

}  // namespace

Result<std::optional<ReadBackOutcome>> ReadBack(Store& store, std::string_view key,
                                                std::span<const std::uint8_t> bytes) {
  // An object larger than ours need not be read to know that it is another's.
  const auto there = store.Get(key, bytes.size());
  if (there.ok()) {
    return std::optional(std::ranges::equal(there.value(), bytes) ? ReadBackOutcome::kOurs
                                                                  : ReadBackOutcome::kConflict);
  }
  if (there.error().code() == ErrorCode::kLimit) return std::optional(ReadBackOutcome::kConflict);
  if (there.error().code() == ErrorCode::kNotFound) return std::optional<ReadBackOutcome>();
  return there.error();
}

Result<ReadBackOutcome> PutAndReadBack(Store& store, std::string_view key, std::span<const std::uint8_t> bytes) {
  if (bytes.size() > kMaxReadBackBytes) {
    return Error(ErrorCode::kLimit, fmt::format("cannot write {} to {}: it has {} bytes, more than the {} that readers "
                                                "accept",
                                                key, store.Name(), bytes.size(), kMaxReadBackBytes));
  }
  const auto put = store.PutIfAbsent(key, bytes);
  if (put.ok() && put.value() == PutOutcome::kCreated) return ReadBackOutcome::kOurs;
  if (!put.ok() && put.error().code() != ErrorCode::kUnknownOutcome) return put.error();

  const auto there = ReadBack(store, key, bytes);
  if (!there.ok()) return StillUnknown(store, key, there.error());
  if (!there.value().has_value()) return StillUnknown(store, key, ObjectNotFound(key, store));
  return *there.value();
}

}  // namespace weightwire
