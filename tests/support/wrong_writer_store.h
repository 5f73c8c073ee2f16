// A store that makes a correct publisher wrong: bugs that are planted between a publisher and its bucket, to prove that
// tests find them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/wrappers/forwarding_store.h"

namespace weightwire::testing {

enum class StoreFault : std::uint8_t {
  kNone,
  kRecordBeforeParts,    // parts are put only once their record is there
  kPartKeyWithoutHash,   // every part of a version is put under one name
  kLostAnswerIsSuccess,  // a lost answer to a record is taken for "created"
};

class WrongWriterStore final : public ForwardingStore {
 public:
  WrongWriterStore(std::unique_ptr<Store> inner, StoreFault fault) : ForwardingStore(std::move(inner)), fault_(fault) {}

 private:
  static bool IsPart(std::string_view key) { return key.starts_with("deltas/"); }
  // Its folder, and a name that says nothing of its bytes.
  static std::string WithoutHash(std::string_view key) {
    return std::string(key.substr(0, key.rfind('/') + 1)) + std::string(64, '0') + ".safetensors";
  }

  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override {
    if (IsPart(key) && fault_ == StoreFault::kRecordBeforeParts) {
      held_[std::string(key)].assign(bytes.begin(), bytes.end());
      return Ok();
    }
    if (IsPart(key) && fault_ == StoreFault::kPartKeyWithoutHash) return inner().Put(WithoutHash(key), bytes);
    return inner().Put(key, bytes);
  }
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override {
    auto outcome = inner().PutIfAbsent(key, bytes);
    if (!key.starts_with("versions/")) return outcome;
    if (fault_ == StoreFault::kLostAnswerIsSuccess && !outcome.ok() &&
        outcome.error().code() == ErrorCode::kUnknownOutcome) {
      return PutOutcome::kCreated;
    }
    for (const auto& [part, held] : std::exchange(held_, {})) static_cast<void>(inner().Put(part, held));
    return outcome;
  }
  Result<ObjectInfo> DoStat(std::string_view key) override {
    if (IsPart(key) && fault_ == StoreFault::kPartKeyWithoutHash) return inner().Stat(WithoutHash(key));
    const auto held = held_.find(std::string(key));
    if (held != held_.end()) return ObjectInfo{held->first, held->second.size(), {}};
    return inner().Stat(key);
  }
  // An upload becomes a put.
  Result<std::unique_ptr<Upload>> DoStartUpload(std::string_view key, std::uint64_t size_bytes) override {
    return Store::DoStartUpload(key, size_bytes);
  }

  const StoreFault fault_;
  std::map<std::string, std::vector<std::uint8_t>> held_;
};

}  // namespace weightwire::testing
