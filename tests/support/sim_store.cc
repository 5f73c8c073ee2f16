#include "support/sim_store.h"

#include <utility>

namespace weightwire::testing {
namespace {

Error Lost(std::string_view key) { return {ErrorCode::kUnknownOutcome, "the answer was lost: " + std::string(key)}; }

}  // namespace

Status SimStore::Ask(std::string_view request, std::string_view key, bool* lost_after) {
  if (dead_) return Error(ErrorCode::kUnavailable, "this process is dead");
  const Fate fate = hook_ ? hook_(request, key) : Fate::kGoOn;
  ++requests_;
  switch (fate) {
    case Fate::kGoOn:
      return Ok();
    case Fate::kDie:
      dead_ = true;
      return Error(ErrorCode::kUnavailable, "this process is dead");
    case Fate::kUnavailable:
      return Error(ErrorCode::kUnavailable, "not now: " + std::string(key));
    case Fate::kRefused:
      return Error(ErrorCode::kRefused, "not you: " + std::string(key));
    case Fate::kLostBefore:
      if (lost_after == nullptr) return Error(ErrorCode::kUnavailable, "not now: " + std::string(key));
      return Lost(key);
    case Fate::kLostAfter:
      if (lost_after == nullptr) return Error(ErrorCode::kUnavailable, "not now: " + std::string(key));
      *lost_after = true;
      return Ok();
  }
  return Ok();
}

Status SimStore::Ask(std::string_view request, std::string_view key) { return Ask(request, key, nullptr); }

Result<std::vector<std::uint8_t>> SimStore::DoGet(std::string_view key, std::uint64_t max_bytes) {
  WW_RETURN_IF_ERROR(Ask("get", key));
  return bucket_.Get(key, max_bytes);
}

Status SimStore::DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) {
  WW_RETURN_IF_ERROR(Ask("read", key));
  return bucket_.Read(key, offset, out);
}

Status SimStore::DoPut(std::string_view key, std::span<const std::uint8_t> bytes) {
  bool lost = false;
  WW_RETURN_IF_ERROR(Ask("put", key, &lost));
  bytes_written_ += bytes.size();
  WW_RETURN_IF_ERROR(bucket_.Put(key, bytes));
  return lost ? Status(Lost(key)) : Ok();
}

Result<PutOutcome> SimStore::DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) {
  bool lost = false;
  WW_RETURN_IF_ERROR(Ask("put if absent", key, &lost));
  bytes_written_ += bytes.size();
  WW_TRY(const PutOutcome outcome, bucket_.PutIfAbsent(key, bytes));
  if (lost) return Lost(key);
  return outcome;
}

Result<ObjectInfo> SimStore::DoStat(std::string_view key) {
  WW_RETURN_IF_ERROR(Ask("stat", key));
  return bucket_.Stat(key);
}

Result<std::vector<ObjectInfo>> SimStore::DoList(std::string_view prefix, std::string_view start_after,
                                                 std::size_t limit) {
  WW_RETURN_IF_ERROR(Ask("list", prefix));
  return bucket_.List(prefix, start_after, limit);
}

Status SimStore::DoRemove(std::string_view key) {
  bool lost = false;
  WW_RETURN_IF_ERROR(Ask("remove", key, &lost));
  WW_RETURN_IF_ERROR(bucket_.Remove(key));
  return lost ? Status(Lost(key)) : Ok();
}

}  // namespace weightwire::testing
