#include "store/wrappers/limit_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace weightwire {

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

class LimitStore::LimitUpload final : public Upload {
 public:
  LimitUpload(LimitStore* store, std::unique_ptr<Upload> inner)
      : Upload(inner->size_bytes(), inner->part_bytes()), store_(store), inner_(std::move(inner)) {}

  Status Finish() override {
    Turn turn(store_);
    return inner_->Finish();
  }
  Status Abort() override {
    Turn turn(store_);
    return inner_->Abort();
  }

 private:
  Status DoWritePart(std::uint64_t index, std::span<const std::uint8_t> bytes) override {
    Turn turn(store_);
    WW_RETURN_IF_ERROR(turn.Wait(bytes.size()));
    return inner_->WritePart(index, bytes);
  }

  LimitStore* const store_;
  const std::unique_ptr<Upload> inner_;
};

LimitStore::LimitStore(std::unique_ptr<Store> inner, const StoreLimits& limits, const Clock* clock, Sleeper* sleeper)
    : inner_(std::move(inner)), limits_(limits), clock_(clock), sleeper_(sleeper) {}

std::chrono::nanoseconds LimitStore::Take(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::chrono::nanoseconds start = std::max(free_from_, clock_->Monotonic());
  if (limits_.bytes_per_second == 0) return start;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(limits_.bytes_per_second);
  free_from_ = start + std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  return start;
}

Result<WallTime> LimitStore::Now() {
  Turn turn(this);
  return inner_->Now();
}

Result<std::vector<std::uint8_t>> LimitStore::DoGet(std::string_view key, std::uint64_t max_bytes) {
  Turn turn(this);
  WW_RETURN_IF_ERROR(turn.Wait(0));
  auto got = inner_->Get(key, max_bytes);
  if (got.ok()) turn.Count(got.value().size());
  return got;
}

Status LimitStore::DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) {
  Turn turn(this);
  WW_RETURN_IF_ERROR(turn.Wait(out.size()));
  return inner_->Read(key, offset, out);
}

Status LimitStore::DoPut(std::string_view key, std::span<const std::uint8_t> bytes) {
  Turn turn(this);
  WW_RETURN_IF_ERROR(turn.Wait(bytes.size()));
  return inner_->Put(key, bytes);
}

Result<PutOutcome> LimitStore::DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) {
  Turn turn(this);
  WW_RETURN_IF_ERROR(turn.Wait(bytes.size()));
  return inner_->PutIfAbsent(key, bytes);
}

Result<ObjectInfo> LimitStore::DoStat(std::string_view key) {
  Turn turn(this);
  return inner_->Stat(key);
}

Result<std::vector<ObjectInfo>> LimitStore::DoList(std::string_view prefix, std::string_view start_after,
                                                   std::size_t limit) {
  Turn turn(this);
  return inner_->List(prefix, start_after, limit);
}

Status LimitStore::DoRemove(std::string_view key) {
  Turn turn(this);
  return inner_->Remove(key);
}

Result<std::unique_ptr<Upload>> LimitStore::DoStartUpload(std::string_view key, std::uint64_t size_bytes) {
  Turn turn(this);
  auto started = inner_->StartUpload(key, size_bytes);
  if (!started.ok()) return started;
  return std::unique_ptr<Upload>(std::make_unique<LimitUpload>(this, std::move(started).value()));
}

}  // namespace weightwire
