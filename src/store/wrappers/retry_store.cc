#include "store/wrappers/retry_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace weightwire {
namespace {

bool IsLost(const Error& error) { return error.code() == ErrorCode::kUnknownOutcome; }
bool IsPassing(const Error& error) { return error.code() == ErrorCode::kUnavailable; }

}  // namespace

// The attempts at one call.
class RetryStore::Attempts {
 public:
  explicit Attempts(RetryStore* store)
      : store_(store), start_(store->clock_->Monotonic()), wait_(store->policy_.first_wait) {}

  // Waits before the next attempt. False when it is time to give up.
  bool Wait() {
    std::chrono::nanoseconds wait = wait_;
    {
      const std::lock_guard lock(store_->random_mutex_);
      // Between half of it and all.
      const auto half = static_cast<std::uint64_t>(wait_.count() / 2);
      wait -= std::chrono::nanoseconds(store_->random_->Below(half + 1));
    }
    wait_ = std::min<std::chrono::nanoseconds>(wait_ * 2, store_->policy_.longest_wait);
    if (store_->clock_->Monotonic() + wait - start_ > store_->policy_.deadline) return false;
    ++count_;
    return store_->sleeper_->SleepFor(wait);
  }

  [[nodiscard]] Error GaveUp(const Error& last) const {
    if (count_ == 1) return last;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(store_->clock_->Monotonic() - start_);
    return {last.code(), fmt::format("{} (tried {} times in {} s)", last.message(), count_, seconds.count())};
  }

  // Calls until it succeeds or fails in a way that will not pass.
  Status Until(bool also_lost, const Send& send) {
    bool lost = false;
    while (true) {
      Status result = send();
      if (result.ok()) return result;
      lost = lost || IsLost(result.error());
      const bool again = IsPassing(result.error()) || (also_lost && IsLost(result.error()));
      if (again && Wait()) continue;
      const Error last = again ? GaveUp(result.error()) : result.error();
      // Whatever the last attempt came to, one before it may have happened.
      return lost ? Error(ErrorCode::kUnknownOutcome, last.message()) : last;
    }
  }

 private:
  RetryStore* const store_;
  const std::chrono::nanoseconds start_;
  std::chrono::nanoseconds wait_;
  int count_ = 1;
};

RetryStore::RetryStore(std::unique_ptr<Store> inner, const RetryPolicy& policy, const Clock* clock, Sleeper* sleeper,
                       Random* random)
    : ForwardingStore(std::move(inner)), policy_(policy), clock_(clock), sleeper_(sleeper), random_(random) {}

Status RetryStore::Around(StoreRequest& request, const Send& send) {
  switch (request.operation) {
    case StoreOperation::kFinishUpload:
      return FinishUpload(request, send);
    case StoreOperation::kPut:
    case StoreOperation::kRemove:
    case StoreOperation::kWritePart:
    case StoreOperation::kAbortUpload:
      return Attempts(this).Until(/*also_lost=*/true, send);
    default:
      return Attempts(this).Until(/*also_lost=*/false, send);
  }
}

Status RetryStore::FinishUpload(const StoreRequest& request, const Send& send) {
  Attempts attempts(this);
  bool lost = false;
  while (true) {
    Status finished = send();
    if (finished.ok()) return finished;
    const Error& error = finished.error();
    lost = lost || IsLost(error);
    if (!lost && !IsPassing(error)) return finished;
    // Once an answer was lost, any later refusal may only mean that it is done.
    if (lost) {
      const auto there = Stat(request.key);
      if (there.ok() && there.value().size_bytes == request.object_bytes) return Ok();
      if (!IsLost(error) && !IsPassing(error)) return finished;
    }
    if (!attempts.Wait()) {
      const Error last = attempts.GaveUp(error);
      return lost ? Error(ErrorCode::kUnknownOutcome, last.message()) : last;
    }
  }
}

Result<PutOutcome> RetryStore::DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) {
  Attempts attempts(this);
  bool lost = false;
  while (true) {
    auto put = inner().PutIfAbsent(key, bytes);
    if (put.ok() && (put.value() == PutOutcome::kCreated || !lost)) return put;
    if (!put.ok() && !IsLost(put.error()) && !IsPassing(put.error())) {
      // An answer was lost, and now we are not even allowed to ask: it may be there.
      return lost ? Error(ErrorCode::kUnknownOutcome, put.error().message()) : put.error();
    }
    lost = lost || (!put.ok() && IsLost(put.error()));
    std::optional<Error> last = put.ok() ? std::nullopt : std::optional(put.error());
    if (lost) {
      const auto there = inner().Get(key, bytes.size());
      if (there.ok()) return std::ranges::equal(there.value(), bytes) ? PutOutcome::kCreated : PutOutcome::kExists;
      if (there.error().code() == ErrorCode::kLimit) return PutOutcome::kExists;
      if (!last) last = there.error();
    }
    if (!attempts.Wait()) {
      const Error given_up = attempts.GaveUp(*last);
      return lost ? Error(ErrorCode::kUnknownOutcome, given_up.message()) : given_up;
    }
  }
}

}  // namespace weightwire
