#include "store/commit.h"

#include <fmt/format.h>

#include <algorithm>

namespace weightwire {
namespace {

Error StillUnknown(const Store& store, std::string_view key, const Error& why) {
  return {ErrorCode::kUnknownOutcome, fmt::format("it is not known whether {} was committed to {}; ask again: {}", key,
                                                  store.Name(), why.message())};
}

}  // namespace

Result<CommitOutcome> Commit(Store& store, std::string_view key, std::span<const std::uint8_t> bytes) {
  if (bytes.size() > kMaxCommitBytes) {
    return Error(ErrorCode::kLimit, fmt::format("cannot write {} to {}: it has {} bytes, more than the {} that readers "
                                                "accept",
                                                key, store.Name(), bytes.size(), kMaxCommitBytes));
  }
  const auto put = store.PutIfAbsent(key, bytes);
  if (put.ok() && put.value() == PutOutcome::kCreated) return CommitOutcome::kOurs;
  if (!put.ok() && put.error().code() != ErrorCode::kUnknownOutcome) return put.error();

  // An object larger than ours need not be read to know that it is another's.
  const auto there = store.Get(key, bytes.size());
  if (there.ok()) {
    return std::ranges::equal(there.value(), bytes) ? CommitOutcome::kOurs : CommitOutcome::kConflict;
  }
  if (there.error().code() == ErrorCode::kLimit) return CommitOutcome::kConflict;
  // Not there yet does not mean it will not be: the lost request may still be on its way. And one that exists but
  // cannot be read may be ours.
  return StillUnknown(store, key, there.error());
}

}  // namespace weightwire
