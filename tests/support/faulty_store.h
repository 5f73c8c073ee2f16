// A store that makes a correct publisher wrong: bugs that are planted between a publisher and its bucket, to prove that
// tests find them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/store.h"

namespace weightwire::testing {

enum class StoreFault : std::uint8_t {
  kNone,
  kRecordBeforeParts,    // parts are put only once their record is there
  kPartKeyWithoutHash,   // every part of a version is put under one name
  kLostAnswerIsSuccess,  // a lost answer to a record is taken for "created"
};

class FaultyStore final : public Store {
 public:
  FaultyStore(std::unique_ptr<Store> inner, StoreFault fault) : inner_(std::move(inner)), fault_(fault) {}

  [[nodiscard]] std::string Name() const override { return inner_->Name(); }
  Result<WallTime> Now() override { return inner_->Now(); }

 private:
  static bool IsPart(std::string_view key) { return key.starts_with("deltas/"); }
  // Its folder, and a name that says nothing of its bytes.
  static std::string WithoutHash(std::string_view key) {
    return std::string(key.substr(0, key.rfind('/') + 1)) + std::string(64, '0') + ".safetensors";
  }

  Result<std::vector<std::uint8_t>> DoGet(std::string_view key, std::uint64_t max_bytes) override {
    return inner_->Get(key, max_bytes);
  }
  Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) override {
    return inner_->Read(key, offset, out);
  }
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override {
    if (IsPart(key) && fault_ == StoreFault::kRecordBeforeParts) {
      held_[std::string(key)].assign(bytes.begin(), bytes.end());
      return Ok();
    }
    if (IsPart(key) && fault_ == StoreFault::kPartKeyWithoutHash) return inner_->Put(WithoutHash(key), bytes);
    return inner_->Put(key, bytes);
  }
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override {
    auto outcome = inner_->PutIfAbsent(key, bytes);
    if (!key.starts_with("versions/")) return outcome;
    if (fault_ == StoreFault::kLostAnswerIsSuccess && !outcome.ok() &&
        outcome.error().code() == ErrorCode::kUnknownOutcome) {
      return PutOutcome::kCreated;
    }
    for (const auto& [part, held] : std::exchange(held_, {})) static_cast<void>(inner_->Put(part, held));
    return outcome;
  }
  Result<ObjectInfo> DoStat(std::string_view key) override {
    if (IsPart(key) && fault_ == StoreFault::kPartKeyWithoutHash) return inner_->Stat(WithoutHash(key));
    const auto held = held_.find(std::string(key));
    if (held != held_.end()) return ObjectInfo{held->first, held->second.size(), {}};
    return inner_->Stat(key);
  }
  Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view start_after,
                                         std::size_t limit) override {
    return inner_->List(prefix, start_after, limit);
  }
  Status DoRemove(std::string_view key) override { return inner_->Remove(key); }

  const std::unique_ptr<Store> inner_;
  const StoreFault fault_;
  std::map<std::string, std::vector<std::uint8_t>> held_;
};

}  // namespace weightwire::testing
