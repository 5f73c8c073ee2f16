#include "store/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "store/key.h"

namespace weightwire {
namespace {

Status CheckPut(std::string_view key, std::span<const std::uint8_t> bytes) {
  WW_RETURN_IF_ERROR(CheckKey(key));
  WW_CHECK(bytes.size() <= kMaxPutBytes);
  return Ok();
}

// Gathers the parts in memory.
class GatheredUpload final : public Upload {
 public:
  GatheredUpload(Store* store, std::string_view key, std::uint64_t size_bytes)
      : Upload(size_bytes, kOtherPartBytes), store_(store), key_(key), bytes_(size_bytes) {}

  Status Finish() override { return store_->Put(key_, bytes_); }
  Status Abort() override { return Ok(); }

 private:
  Status DoWritePart(std::uint64_t index, std::span<const std::uint8_t> bytes) override {
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(index * part_bytes()));
    return Ok();
  }

  Store* const store_;
  const std::string key_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace

std::uint64_t Upload::PartSize(std::uint64_t index) const {
  WW_CHECK(index < part_count());
  return std::min(part_bytes_, size_bytes_ - index * part_bytes_);
}

Status Upload::WritePart(std::uint64_t index, std::span<const std::uint8_t> bytes) {
  WW_CHECK(bytes.size() == PartSize(index));
  return DoWritePart(index, bytes);
}

Result<std::vector<std::uint8_t>> Store::Get(std::string_view key, std::uint64_t max_bytes) {
  WW_RETURN_IF_ERROR(CheckKey(key));
  return DoGet(key, max_bytes);
}

Status Store::Read(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) {
  WW_RETURN_IF_ERROR(CheckKey(key));
  const auto end = CheckedAdd(offset, out.size());
  if (!end || *end > kMaxObjectBytes) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("cannot read {} bytes of {} from byte {}: no object is that large", out.size(), key, offset));
  }
  if (out.empty()) return Ok();
  return DoRead(key, offset, out);
}

Status Store::Put(std::string_view key, std::span<const std::uint8_t> bytes) {
  WW_RETURN_IF_ERROR(CheckPut(key, bytes));
  return DoPut(key, bytes);
}

Result<PutOutcome> Store::PutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) {
  WW_RETURN_IF_ERROR(CheckPut(key, bytes));
  return DoPutIfAbsent(key, bytes);
}

Result<ObjectInfo> Store::Stat(std::string_view key) {
  WW_RETURN_IF_ERROR(CheckKey(key));
  return DoStat(key);
}

Result<std::vector<ObjectInfo>> Store::List(std::string_view prefix, std::string_view start_after, std::size_t limit) {
  WW_RETURN_IF_ERROR(CheckKeyPrefix(prefix));
  WW_RETURN_IF_ERROR(CheckKeyPrefix(start_after));
  WW_CHECK(limit >= 1 && limit <= kMaxListEntries);
  return DoList(prefix, start_after, limit);
}

Status Store::Remove(std::string_view key) {
  WW_RETURN_IF_ERROR(CheckKey(key));
  return DoRemove(key);
}

Result<std::unique_ptr<Upload>> Store::StartUpload(std::string_view key, std::uint64_t size_bytes) {
  WW_RETURN_IF_ERROR(CheckKey(key));
  WW_CHECK(size_bytes >= 1);
  if (size_bytes > kMaxObjectBytes) {
    return Error(ErrorCode::kLimit, fmt::format("cannot upload {} to {}: it has {} bytes and the limit is {}", key,
                                                Name(), size_bytes, kMaxObjectBytes));
  }
  return DoStartUpload(key, size_bytes);
}

Result<std::unique_ptr<Upload>> Store::DoStartUpload(std::string_view key, std::uint64_t size_bytes) {
  if (size_bytes > kMaxPutBytes) {
    return Error(ErrorCode::kLimit, fmt::format("cannot upload {} to {}: it has {} bytes and the limit is {}", key,
                                                Name(), size_bytes, kMaxPutBytes));
  }
  return std::unique_ptr<Upload>(std::make_unique<GatheredUpload>(this, key, size_bytes));
}

Error ObjectNotFound(std::string_view key, const Store& store) {
  return {ErrorCode::kNotFound, fmt::format("there is no object {} in {}", key, store.Name())};
}

Error ObjectEndsEarly(std::string_view key, const Store& store, std::uint64_t wanted_end_bytes,
                      std::uint64_t size_bytes) {
  return {ErrorCode::kCorrupt, fmt::format("object {} in {} is damaged: it ends at byte {} and should reach byte {}",
                                           key, store.Name(), size_bytes, wanted_end_bytes)};
}

Error ObjectTooLarge(std::string_view key, const Store& store, std::uint64_t size_bytes, std::uint64_t max_bytes) {
  return {ErrorCode::kLimit, fmt::format("object {} in {} has {} bytes and may have at most {}", key, store.Name(),
                                         size_bytes, max_bytes)};
}

}  // namespace weightwire
