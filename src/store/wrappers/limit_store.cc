#include "store/wrappers/limit_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace weightwire {
namespace {

// Requests that carry an object's bytes wait for the line; the others are small.
bool MovesObject(StoreOperation operation) {
  switch (operation) {
    case StoreOperation::kGet:
    case StoreOperation::kRead:
    case StoreOperation::kPut:
    case StoreOperation::kPutIfAbsent:
    case StoreOperation::kWritePart:
      return true;
    default:
      return false;
  }
}

}  // namespace

// One request's place among those at once.
class LimitStore::Turn {
 public:
  explicit Turn(LimitStore* store) : store_(store) {
    std::unique_lock lock(store_->mutex_);
    const std::size_t most = store_->limits_.requests_at_once;
    store_->less_.wait(lock, [&] { return most == 0 || store_->requests_ < most; });
    ++store_->requests_;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    {
      const std::lock_guard lock(store_->mutex_);
      --store_->requests_;
    }
    store_->less_.notify_one();
  }

  // Waits until the bytes may flow.
  Status Wait(std::uint64_t bytes) {
    const std::chrono::nanoseconds start = store_->Take(bytes);
    const std::chrono::nanoseconds wait = start - store_->clock_->Monotonic();
    if (wait <= std::chrono::nanoseconds(0) || store_->sleeper_->SleepFor(wait)) return Ok();
    return Error(ErrorCode::kUnavailable, fmt::format("stopped while waiting to use {}", store_->Name()));
  }

  // For bytes that came without being announced.
  void Count(std::uint64_t bytes) { store_->Take(bytes); }

 private:
  LimitStore* const store_;
};

LimitStore::LimitStore(std::unique_ptr<Store> inner, const StoreLimits& limits, const Clock* clock, Sleeper* sleeper)
    : ForwardingStore(std::move(inner)), limits_(limits), clock_(clock), sleeper_(sleeper) {}

std::chrono::nanoseconds LimitStore::Take(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::chrono::nanoseconds start = std::max(free_from_, clock_->Monotonic());
  if (limits_.bytes_per_second == 0) return start;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(limits_.bytes_per_second);
  free_from_ = start + std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  return start;
}

Status LimitStore::Around(StoreRequest& request, const Send& send) {
  Turn turn(this);
  if (MovesObject(request.operation)) WW_RETURN_IF_ERROR(turn.Wait(request.sent_bytes + request.wanted_bytes));
  Status sent = send();
  if (sent.ok() && request.operation == StoreOperation::kGet) turn.Count(request.received_bytes);
  return sent;
}

}  // namespace weightwire
