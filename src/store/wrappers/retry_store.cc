#include "store/wrappers/retry_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "store/read_back.h"

namespace weightwire {

// The attempts at one call.
class RetryStore::Attempts {
 public:
  explicit Attempts(RetryStore* store)
      : store_(store), start_(store->clock_->Monotonic()), attempt_began_(start_), backoff_(store->policy_.backoff) {}

  void Succeeded() { store_->SetAnswered(); }
  // Notes a failed attempt. Returns true if the same call may succeed soon.
  bool MayRepeat(const Error& error) {
    lost_ = lost_ || error.code() == ErrorCode::kUnknownOutcome;
    if (IsTransient(error)) {
      store_->SetUnanswered(attempt_began_);
    } else {
      store_->SetAnswered();
    }
    return IsTransient(error);
  }
  // True once the answer to an attempt was lost, which then may have happened.
  [[nodiscard]] bool lost() const { return lost_; }

  // Waits before the next attempt. False when it is time to give up.
  bool Wait() {
    const MonotonicTime began = std::min(start_, store_->OutageBegan().value_or(start_));
    const MonotonicTime left = began + store_->policy_.deadline - store_->clock_->Monotonic();
    if (left <= MonotonicTime(0)) return false;
    ++count_;
    const bool slept = store_->sleeper_->SleepFor(std::min(left, store_->NextPause(backoff_)));
    attempt_began_ = store_->clock_->Monotonic();
    return slept;
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
  MonotonicTime attempt_began_;
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

void RetryStore::SetAnswered() {
  if (!policy_.across_calls) return;
  const std::lock_guard lock(outage_mutex_);
  outage_began_.reset();
}

void RetryStore::SetUnanswered(MonotonicTime began) {
  if (!policy_.across_calls) return;
  const std::lock_guard lock(outage_mutex_);
  if (!outage_began_.has_value()) outage_began_ = began;
}

std::optional<MonotonicTime> RetryStore::OutageBegan() {
  const std::lock_guard lock(outage_mutex_);
  return outage_began_;
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
    if (sent.ok()) {
      attempts.Succeeded();
      return sent;
    }
    const bool may_repeat = attempts.MayRepeat(sent.error()) && (also_if_lost || !attempts.lost());
    if (!may_repeat) return attempts.Final(sent.error());
    if (!attempts.Wait()) return attempts.GaveUp(sent.error());
  }
}

Status RetryStore::FinishUpload(const StoreRequest& request, const Send& send) {
  Attempts attempts(this);
  while (true) {
    Status finished = send();
    if (finished.ok()) {
      attempts.Succeeded();
      return finished;
    }
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
    if (put.ok()) attempts.Succeeded();
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
