#include "support/sim_store.h"

#include <string>

namespace weightwire::testing {
namespace {

std::string_view HookNameOf(StoreOperation operation) {
  return operation == StoreOperation::kPutIfAbsent ? "put if absent" : NameOf(operation);
}

Error Lost(std::string_view key) { return {ErrorCode::kUnknownOutcome, "the answer was lost: " + std::string(key)}; }

}  // namespace

Status SimStore::Around(StoreRequest& request, const Send& send) {
  if (dead_) return Error(ErrorCode::kUnavailable, "this process is dead");
  const Fate fate = hook_ ? hook_(HookNameOf(request.operation), request.key) : Fate::kGoOn;
  ++requests_;
  const bool loses_answer = fate == Fate::kLostBefore || fate == Fate::kLostAfter;
  if (fate == Fate::kUnavailable || (loses_answer && !IsWrite(request.operation))) {
    return Error(ErrorCode::kUnavailable, "not now: " + std::string(request.key));
  }
  if (fate == Fate::kDie) {
    dead_ = true;
    return Error(ErrorCode::kUnavailable, "this process is dead");
  }
  if (fate == Fate::kRefused) return Error(ErrorCode::kRefused, "not you: " + std::string(request.key));
  if (fate == Fate::kLostBefore) return Lost(request.key);
  bytes_written_ += request.sent_bytes;
  WW_RETURN_IF_ERROR(send());
  return fate == Fate::kLostAfter ? Status(Lost(request.key)) : Ok();
}

}  // namespace weightwire::testing
