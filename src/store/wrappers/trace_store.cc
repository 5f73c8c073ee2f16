#include "store/wrappers/trace_store.h"

#include <fmt/format.h>

#include <type_traits>
#include <utility>

namespace weightwire {
namespace {

// What a successful call brought.
template <typename T>
std::uint64_t BytesIn(const T& result) {
  if constexpr (std::is_same_v<T, Result<std::vector<std::uint8_t>>>) return result.value().size();
  return 0;
}

template <typename T>
std::string OutcomeOf(const T& result) {
  if constexpr (std::is_same_v<T, Result<PutOutcome>>) {
    return result.value() == PutOutcome::kExists ? "exists" : "ok";
  }
  return "ok";
}

}  // namespace

std::string FormatTraceEvent(const TraceEvent& event) {
  const double milliseconds = std::chrono::duration<double, std::milli>(event.duration).count();
  return fmt::format("{} {} {} sent {} received {:.1f} ms {}", event.operation, event.key.empty() ? "-" : event.key,
                     event.sent_bytes, event.received_bytes, milliseconds, event.outcome);
}

template <typename Call>
auto TraceStore::Traced(std::string_view operation, std::string_view key, std::uint64_t sent_bytes, Call call)
    -> decltype(call()) {
  const std::chrono::nanoseconds start = clock_->Monotonic();
  auto result = call();
  TraceEvent event{operation, std::string(key), sent_bytes, 0, clock_->Monotonic() - start, ""};
  if (result.ok()) {
    event.received_bytes = BytesIn(result);
    event.outcome = OutcomeOf(result);
  } else {
    event.outcome = result.error().message();
  }
  Tell(event, !result.ok());
  return result;
}

class TraceStore::TraceUpload final : public Upload {
 public:
  TraceUpload(TraceStore* store, std::string_view key, std::unique_ptr<Upload> inner)
      : Upload(inner->size_bytes(), inner->part_bytes()), store_(store), key_(key), inner_(std::move(inner)) {}

  Status Finish() override {
    return store_->Traced("finish-upload", key_, 0, [&] { return inner_->Finish(); });
  }
  Status Abort() override {
    return store_->Traced("abort-upload", key_, 0, [&] { return inner_->Abort(); });
  }

 private:
  Status DoWritePart(std::uint64_t index, std::span<const std::uint8_t> bytes) override {
    return store_->Traced("write-part", key_, bytes.size(), [&] { return inner_->WritePart(index, bytes); });
  }

  TraceStore* const store_;
  const std::string key_;
  const std::unique_ptr<Upload> inner_;
};

TraceStore::TraceStore(std::unique_ptr<Store> inner, const Clock* clock, Sink sink)
    : inner_(std::move(inner)), clock_(clock), sink_(std::move(sink)) {}

TraceCounts TraceStore::Counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void TraceStore::Tell(const TraceEvent& event, bool failed) {
  const std::lock_guard lock(mutex_);
  ++counts_.requests;
  counts_.failed += failed ? 1 : 0;
  counts_.sent_bytes += event.sent_bytes;
  counts_.received_bytes += event.received_bytes;
  ++counts_.by_operation[std::string(event.operation)];
  if (sink_) sink_(event);
}

Result<WallTime> TraceStore::Now() {
  return Traced("now", "", 0, [&] { return inner_->Now(); });
}

Result<std::vector<std::uint8_t>> TraceStore::DoGet(std::string_view key, std::uint64_t max_bytes) {
  return Traced("get", key, 0, [&] { return inner_->Get(key, max_bytes); });
}

Status TraceStore::DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) {
  const std::chrono::nanoseconds start = clock_->Monotonic();
  Status read = inner_->Read(key, offset, out);
  const std::uint64_t received = read.ok() ? out.size() : 0;
  Tell({"read", std::string(key), 0, received, clock_->Monotonic() - start, read.ok() ? "ok" : read.error().message()},
       !read.ok());
  return read;
}

Status TraceStore::DoPut(std::string_view key, std::span<const std::uint8_t> bytes) {
  return Traced("put", key, bytes.size(), [&] { return inner_->Put(key, bytes); });
}

Result<PutOutcome> TraceStore::DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) {
  return Traced("put-if-absent", key, bytes.size(), [&] { return inner_->PutIfAbsent(key, bytes); });
}

Result<ObjectInfo> TraceStore::DoStat(std::string_view key) {
  return Traced("stat", key, 0, [&] { return inner_->Stat(key); });
}

Result<std::vector<ObjectInfo>> TraceStore::DoList(std::string_view prefix, std::string_view start_after,
                                                   std::size_t limit) {
  return Traced("list", prefix, 0, [&] { return inner_->List(prefix, start_after, limit); });
}

Status TraceStore::DoRemove(std::string_view key) {
  return Traced("remove", key, 0, [&] { return inner_->Remove(key); });
}

Result<std::unique_ptr<Upload>> TraceStore::DoStartUpload(std::string_view key, std::uint64_t size_bytes) {
  auto started = Traced("start-upload", key, 0, [&] { return inner_->StartUpload(key, size_bytes); });
  if (!started.ok()) return started;
  return std::unique_ptr<Upload>(std::make_unique<TraceUpload>(this, key, std::move(started).value()));
}

}  // namespace weightwire
