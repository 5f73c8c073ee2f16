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
  template <typename Call>
  auto Until(bool also_lost, Call call) -> decltype(call()) {
    bool lost = false;
    while (true) {
      auto result = call();
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

class RetryStore::RetryUpload final : public Upload {
 public:
  RetryUpload(RetryStore* store, std::string_view key, std::unique_ptr<Upload> inner)
      : Upload(inner->size_bytes(), inner->part_bytes()), store_(store), key_(key), inner_(std::move(inner)) {}

  Status Finish() override {
    Attempts attempts(store_);
    bool lost = false;
    while (true) {
      Status finished = inner_->Finish();
      if (finished.ok()) return finished;
      const Error& error = finished.error();
      lost = lost || IsLost(error);
      if (!lost && !IsPassing(error)) return finished;
      // Once an answer was lost, any later refusal may only mean that it is done.
      if (lost) {
        const auto there = store_->Stat(key_);
        if (there.ok() && there.value().size_bytes == size_bytes()) return Ok();
        if (!IsLost(error) && !IsPassing(error)) return finished;
      }
      if (!attempts.Wait()) {
        const Error last = attempts.GaveUp(error);
        return lost ? Error(ErrorCode::kUnknownOutcome, last.message()) : last;
      }
    }
  }

  Status Abort() override {
    return Attempts(store_).Until(true, [&] { return inner_->Abort(); });
  }

 private:
  Status DoWritePart(std::uint64_t index, std::span<const std::uint8_t> bytes) override {
    return Attempts(store_).Until(true, [&] { return inner_->WritePart(index, bytes); });
  }

  RetryStore* const store_;
  const std::string key_;
  const std::unique_ptr<Upload> inner_;
};

RetryStore::RetryStore(std::unique_ptr<Store> inner, const RetryPolicy& policy, const Clock* clock, Sleeper* sleeper,
                       Random* random)
    : inner_(std::move(inner)), policy_(policy), clock_(clock), sleeper_(sleeper), random_(random) {}

Result<WallTime> RetryStore::Now() {
  return Attempts(this).Until(false, [&] { return inner_->Now(); });
}

Result<std::vector<std::uint8_t>> RetryStore::DoGet(std::string_view key, std::uint64_t max_bytes) {
  return Attempts(this).Until(false, [&] { return inner_->Get(key, max_bytes); });
}

Status RetryStore::DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) {
  return Attempts(this).Until(false, [&] { return inner_->Read(key, offset, out); });
}

Status RetryStore::DoPut(std::string_view key, std::span<const std::uint8_t> bytes) {
  return Attempts(this).Until(true, [&] { return inner_->Put(key, bytes); });
}

Result<PutOutcome> RetryStore::DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) {
  Attempts attempts(this);
  bool lost = false;
  while (true) {
    auto put = inner_->PutIfAbsent(key, bytes);
    if (put.ok() && (put.value() == PutOutcome::kCreated || !lost)) return put;
    if (!put.ok() && !IsLost(put.error()) && !IsPassing(put.error())) {
      // An answer was lost, and now we are not even allowed to ask: it may be there.
      return lost ? Error(ErrorCode::kUnknownOutcome, put.error().message()) : put.error();
    }
    lost = lost || (!put.ok() && IsLost(put.error()));
    std::optional<Error> last = put.ok() ? std::nullopt : std::optional(put.error());
    if (lost) {
      const auto there = inner_->Get(key, bytes.size());
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

Result<ObjectInfo> RetryStore::DoStat(std::string_view key) {
  return Attempts(this).Until(false, [&] { return inner_->Stat(key); });
}

Result<std::vector<ObjectInfo>> RetryStore::DoList(std::string_view prefix, std::string_view start_after,
                                                   std::size_t limit) {
  return Attempts(this).Until(false, [&] { return inner_->List(prefix, start_after, limit); });
}

Status RetryStore::DoRemove(std::string_view key) {
  return Attempts(this).Until(true, [&] { return inner_->Remove(key); });
}

Result<std::unique_ptr<Upload>> RetryStore::DoStartUpload(std::string_view key, std::uint64_t size_bytes) {
  auto started = Attempts(this).Until(false, [&] { return inner_->StartUpload(key, size_bytes); });
  if (!started.ok()) return started;
  return std::unique_ptr<Upload>(std::make_unique<RetryUpload>(this, key, std::move(started).value()));
}

}  // namespace weightwire
