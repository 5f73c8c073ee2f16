#include "store/wrappers/retry_store.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "store/read_back.h"

namespace weightwire {

// The attempts at one call.
class RetryStore::Attempts {
 public:
  explicit Attempts(RetryStore* store)
      : store_(store), start_(store->clock_->Monotonic()), backoff_(store->policy_.backoff) {}

  // Notes a failed attempt. Returns true if the same call may succeed soon.
  bool MayRepeat(const Error& error) {
    lost_ = lost_ || error.code() == ErrorCode::kUnknownOutcome;
    return IsTransient(error);
  }
  // True once the answer to an attempt was lost, which then may have happened.
  [[nodiscard]] bool lost() const { return lost_; }

  // Waits before the next attempt. False when it is time to give up.
  bool Wait() {
    const MonotonicTime pause = store_->NextPause(backoff_);
    if (store_->clock_->Monotonic() + pause - start_ > store_->policy_.deadline) return false;
    ++count_;
    return store_->sleeper_->SleepFor(pause);
  }

  // The error of a call whose last attempt ended with `last`.
  [[nodiscard]] Error Final(const Error& last) const {
    return {lost_ ? ErrorCode::kUnknownOutcome : last.code(), last.message()};
  }
  // The same, after Wait returned false.
  [[nodiscard]] Error GaveUp(const Error& last) const {
    if (count_ == 1) return Final(last);
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(store_->clock_->Monotonic() - start_);
    return Final({last.code(), fmt::format("{} (tried {} times in {} s)", last.message(), count_, seconds.count())});
  }

 private:
  RetryStore* const store_;
  const MonotonicTime start_;
  Backoff backoff_;
  bool lost_ = false;
  int count_ = 1;
};

RetryStore::RetryStore(std::unique_ptr<Store> inner, const RetryPolicy& policy, const Clock* clock, Sleeper* sleeper,
                       Random* random)
    : ForwardingStore(std::move(inner)), policy_(policy), clock_(clock), sleeper_(sleeper), random_(random) {}

MonotonicTime RetryStore::NextPause(Backoff& backoff) {
  const std::lock_guard lock(random_mutex_);
  return backoff.Next(*random_);
}

Status RetryStore::Around(StoreRequest& request, const Send& send) {
  switch (request.operation) {
    case StoreOperation::kFinishUpload:
      return FinishUpload(request, send);
    case StoreOperation::kPut:
    case StoreOperation::kRemove:
    case StoreOperation::kWritePart:
    case StoreOperation::kAbortUpload:
      return Repeat(send, /*also_if_lost=*/true);
    default:
      return Repeat(send, /*also_if_lost=*/false);
  }
}

Status RetryStore::Repeat(const Send& send, bool also_if_lost) {
  Attempts attempts(this);
  while (true) {
    Status sent = send();
    if (sent.ok()) return sent;
    const bool may_repeat = attempts.MayRepeat(sent.error()) && (also_if_lost || !attempts.lost());
    if (!may_repeat) return attempts.Final(sent.error());
    if (!attempts.Wait()) return attempts.GaveUp(sent.error());
  }
}

Status RetryStore::FinishUpload(const StoreRequest& request, const Send& send) {
  Attempts attempts(this);
  while (true) {
    Status finished = send();
    if (finished.ok()) return finished;
    const bool may_repeat = attempts.MayRepeat(finished.error());
    // Once an answer was lost, a later refusal may only mean that the upload is finished.
    if (attempts.lost()) {
      const auto there = Stat(request.key);
      if (there.ok() && there.value().size_bytes == request.object_bytes) return Ok();
    }
    if (!may_repeat) return finished;
    if (!attempts.Wait()) return attempts.GaveUp(finished.error());
  }
}

Result<PutOutcome> RetryStore::DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) {
  Attempts attempts(this);
  while (true) {
    auto put = inner().PutIfAbsent(key, bytes);
    if (put.ok() && (put.value() == PutOutcome::kCreated || !attempts.lost())) return put;
    // After a lost answer the object may exist, although this attempt was refused.
    if (!put.ok() && !attempts.MayRepeat(put.error())) return attempts.Final(put.error());
    Error last = put.ok() ? ObjectNotFound(key, *this) : put.error();
    if (attempts.lost()) {
      const auto there = ReadBack(inner(), key, bytes);
      if (there.ok() && there.value().has_value()) {
        return *there.value() == ReadBackOutcome::kOurs ? PutOutcome::kCreated : PutOutcome::kExists;
      }
      if (put.ok() && !there.ok()) last = there.error();
    }
    if (!attempts.Wait()) return attempts.GaveUp(last);
  }
}

}  // namespace weightwire
