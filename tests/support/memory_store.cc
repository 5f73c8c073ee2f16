#include "support/memory_store.h"

#include <algorithm>

namespace weightwire {

Result<std::vector<std::uint8_t>> MemoryStore::DoGet(std::string_view key, std::uint64_t max_bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(key);
  if (found == objects_.end()) return ObjectNotFound(key, *this);
  const auto& bytes = found->second.bytes;
  if (bytes.size() > max_bytes) return ObjectTooLarge(key, *this, bytes.size(), max_bytes);
  return bytes;
}

Status MemoryStore::DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(key);
  if (found == objects_.end()) return ObjectNotFound(key, *this);
  const auto& bytes = found->second.bytes;
  if (offset + out.size() > bytes.size()) return ObjectEndsEarly(key, *this, offset + out.size(), bytes.size());
  std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
  return Ok();
}

Status MemoryStore::DoPut(std::string_view key, std::span<const std::uint8_t> bytes) {
  const std::lock_guard lock(mutex_);
  objects_.insert_or_assign(std::string(key), Object{{bytes.begin(), bytes.end()}, clock_->Wall()});
  return Ok();
}

Result<PutOutcome> MemoryStore::DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) {
  const std::lock_guard lock(mutex_);
  const auto [place, created] = objects_.try_emplace(std::string(key));
  if (!created) return PutOutcome::kExists;
  place->second = Object{{bytes.begin(), bytes.end()}, clock_->Wall()};
  return PutOutcome::kCreated;
}

Result<ObjectInfo> MemoryStore::DoStat(std::string_view key) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(key);
  if (found == objects_.end()) return ObjectNotFound(key, *this);
  return ObjectInfo{found->first, found->second.bytes.size(), found->second.last_modified};
}

Result<std::vector<ObjectInfo>> MemoryStore::DoList(std::string_view prefix, std::string_view start_after,
                                                    std::size_t limit) {
  const std::lock_guard lock(mutex_);
  std::vector<ObjectInfo> found;
  auto place = prefix > start_after ? objects_.lower_bound(prefix) : objects_.upper_bound(start_after);
  if (prefix.empty() && start_after.empty()) place = objects_.begin();
  for (; place != objects_.end() && place->first.starts_with(prefix) && found.size() < limit; ++place) {
    found.push_back({place->first, place->second.bytes.size(), place->second.last_modified});
  }
  return found;
}

Status MemoryStore::DoRemove(std::string_view key) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(key);
  if (found != objects_.end()) objects_.erase(found);
  return Ok();
}

}  // namespace weightwire
