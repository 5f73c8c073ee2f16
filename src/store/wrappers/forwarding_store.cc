#include "store/wrappers/forwarding_store.h"

#include <optional>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace weightwire {

std::string_view NameOf(StoreOperation operation) {
  switch (operation) {
    case StoreOperation::kNow:
      return "now";
    case StoreOperation::kGet:
      return "get";
    case StoreOperation::kRead:
      return "read";
    case StoreOperation::kPut:
      return "put";
    case StoreOperation::kPutIfAbsent:
      return "put-if-absent";
    case StoreOperation::kStat:
      return "stat";
    case StoreOperation::kList:
      return "list";
    case StoreOperation::kRemove:
      return "remove";
    case StoreOperation::kStartUpload:
      return "start-upload";
    case StoreOperation::kWritePart:
      return "write-part";
    case StoreOperation::kFinishUpload:
      return "finish-upload";
    case StoreOperation::kAbortUpload:
      return "abort-upload";
  }
  return "";
}

bool IsWrite(StoreOperation operation) {
  switch (operation) {
    case StoreOperation::kNow:
    case StoreOperation::kGet:
    case StoreOperation::kRead:
    case StoreOperation::kStat:
    case StoreOperation::kList:
      return false;
    default:
      return true;
  }
}

class ForwardingStore::ForwardingUpload final : public Upload {
 public:
  ForwardingUpload(ForwardingStore* store, std::string_view key, std::unique_ptr<Upload> inner)
      : Upload(inner->size_bytes(), inner->part_bytes()), store_(store), key_(key), inner_(std::move(inner)) {}

  Status Finish() override {
    return Around(StoreOperation::kFinishUpload, 0, [this] { return inner_->Finish(); });
  }
  Status Abort() override {
    return Around(StoreOperation::kAbortUpload, 0, [this] { return inner_->Abort(); });
  }

 private:
  Status DoWritePart(std::uint64_t index, std::span<const std::uint8_t> bytes) override {
    return Around(StoreOperation::kWritePart, bytes.size(), [&] { return inner_->WritePart(index, bytes); });
  }
  Status Around(StoreOperation operation, std::uint64_t sent_bytes, const Send& send) {
    StoreRequest request{.operation = operation, .key = key_, .sent_bytes = sent_bytes, .object_bytes = size_bytes()};
    return store_->Around(request, send);
  }

  ForwardingStore* const store_;
  const std::string key_;
  const std::unique_ptr<Upload> inner_;
};

Status ForwardingStore::Around(StoreRequest& /*request*/, const Send& send) { return send(); }

template <typename T, typename Call>
Result<T> ForwardingStore::Forward(StoreRequest request, const Call& call) {
  std::optional<Result<T>> result;
  WW_RETURN_IF_ERROR(Around(request, [&]() -> Status {
    result.emplace(call());
    if (!result->ok()) return result->error();
    if constexpr (std::is_same_v<T, std::vector<std::uint8_t>>) request.received_bytes = result->value().size();
    if constexpr (std::is_same_v<T, PutOutcome>) request.exists = result->value() == PutOutcome::kExists;
    return Ok();
  }));
  WW_CHECK(result.has_value() && result->ok());
  return std::move(*result);
}

Result<WallTime> ForwardingStore::Now() {
  return Forward<WallTime>({.operation = StoreOperation::kNow}, [&] { return inner_.Now(); });
}

Result<std::vector<std::uint8_t>> ForwardingStore::DoGet(std::string_view key, std::uint64_t max_bytes) {
  return Forward<std::vector<std::uint8_t>>({.operation = StoreOperation::kGet, .key = key},
                                            [&] { return inner_.Get(key, max_bytes); });
}

Status ForwardingStore::DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) {
  StoreRequest request{.operation = StoreOperation::kRead, .key = key, .wanted_bytes = out.size()};
  return Around(request, [&] {
    Status read = inner_.Read(key, offset, out);
    request.received_bytes = read.ok() ? out.size() : 0;
    return read;
  });
}

Status ForwardingStore::DoPut(std::string_view key, std::span<const std::uint8_t> bytes) {
  StoreRequest request{.operation = StoreOperation::kPut, .key = key, .sent_bytes = bytes.size()};
  return Around(request, [&] { return inner_.Put(key, bytes); });
}

Result<PutOutcome> ForwardingStore::DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) {
  return Forward<PutOutcome>({.operation = StoreOperation::kPutIfAbsent, .key = key, .sent_bytes = bytes.size()},
                             [&] { return inner_.PutIfAbsent(key, bytes); });
}

Result<ObjectInfo> ForwardingStore::DoStat(std::string_view key) {
  return Forward<ObjectInfo>({.operation = StoreOperation::kStat, .key = key}, [&] { return inner_.Stat(key); });
}

Result<std::vector<ObjectInfo>> ForwardingStore::DoList(std::string_view prefix, std::string_view start_after,
                                                        std::size_t limit) {
  return Forward<std::vector<ObjectInfo>>({.operation = StoreOperation::kList, .key = prefix},
                                          [&] { return inner_.List(prefix, start_after, limit); });
}

Status ForwardingStore::DoRemove(std::string_view key) {
  StoreRequest request{.operation = StoreOperation::kRemove, .key = key};
  return Around(request, [&] { return inner_.Remove(key); });
}

Result<std::unique_ptr<Upload>> ForwardingStore::DoStartUpload(std::string_view key, std::uint64_t size_bytes) {
  WW_TRY(auto started, Forward<std::unique_ptr<Upload>>(
                           {.operation = StoreOperation::kStartUpload, .key = key, .object_bytes = size_bytes},
                           [&] { return inner_.StartUpload(key, size_bytes); }));
  return std::unique_ptr<Upload>(std::make_unique<ForwardingUpload>(this, key, std::move(started)));
}

}  // namespace weightwire
