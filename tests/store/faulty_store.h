// A store in memory that fails as told: the next call of an operation has the next fault planned for it.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "store/backends/memory_store.h"

namespace weightwire::testing {

enum class Fault {
  kNone,
  kUnavailable,  // nothing happens, and that is said
  kLostAnswer,   // it happens, but that is not known
  kLostRequest,  // it does not happen, and that is not known either
  kLate,         // it happens only after the next call, and is not known
  kRefused,
  kDamaged,  // kCorrupt
};

class FaultyStore final : public Store {
 public:
  explicit FaultyStore(const Clock* clock) : memory_(clock) {}

  // For the next calls of "get", "read", "put", "put-if-absent", "stat", "list", "remove", "start", "part", "finish",
  // "abort".
  void Plan(const std::string& operation, std::initializer_list<Fault> faults) {
    const std::lock_guard lock(mutex_);
    for (const Fault fault : faults) plans_[operation].push_back(fault);
  }
  // Every call of it from now on.
  void PlanAlways(const std::string& operation, Fault fault) {
    const std::lock_guard lock(mutex_);
    always_[operation] = fault;
  }
  [[nodiscard]] int Calls(const std::string& operation) {
    const std::lock_guard lock(mutex_);
    return calls_[operation];
  }
  // The objects, without faults.
  MemoryStore& memory() { return memory_; }

  [[nodiscard]] std::string Name() const override { return "faulty"; }
  Result<WallTime> Now() override { return memory_.Now(); }

 private:
  class FaultyUpload final : public Upload {
   public:
    FaultyUpload(FaultyStore* store, std::unique_ptr<Upload> inner)
        : Upload(inner->size_bytes(), inner->part_bytes()), store_(store), inner_(std::move(inner)) {}
    Status Finish() override {
      return store_->Try<Status>("finish", [this] { return inner_->Finish(); });
    }
    Status Abort() override {
      return store_->Try<Status>("abort", [this] { return inner_->Abort(); });
    }

   private:
    Status DoWritePart(std::uint64_t index, std::span<const std::uint8_t> bytes) override {
      return store_->Try<Status>("part", [&] { return inner_->WritePart(index, bytes); });
    }
    FaultyStore* const store_;
    const std::unique_ptr<Upload> inner_;
  };

  template <typename R>
  R Try(const std::string& operation, const std::function<R()>& call) {
    Fault fault = Fault::kNone;
    std::function<void()> late;
    {
      const std::lock_guard lock(mutex_);
      ++calls_[operation];
      auto& plan = plans_[operation];
      if (!plan.empty()) {
        fault = plan.front();
        plan.pop_front();
      } else if (always_.contains(operation)) {
        fault = always_[operation];
      }
      late = std::exchange(late_, nullptr);
    }
    const auto after = [&](R result) {
      if (late) late();
      return result;
    };
    switch (fault) {
      case Fault::kNone:
        return after(call());
      case Fault::kUnavailable:
        return after(Error(ErrorCode::kUnavailable, "not now"));
      case Fault::kLostAnswer:
        (void)call();
        return after(Error(ErrorCode::kUnknownOutcome, "no answer"));
      case Fault::kLostRequest:
        return after(Error(ErrorCode::kUnknownOutcome, "no answer"));
      case Fault::kLate: {
        const std::lock_guard lock(mutex_);
        late_ = [call] { (void)call(); };
        return Error(ErrorCode::kUnknownOutcome, "no answer");
      }
      case Fault::kRefused:
        return after(Error(ErrorCode::kRefused, "not allowed"));
      case Fault::kDamaged:
        break;
    }
    return after(Error(ErrorCode::kCorrupt, "damaged"));
  }

  Result<std::vector<std::uint8_t>> DoGet(std::string_view key, std::uint64_t max_bytes) override {
    return Try<Result<std::vector<std::uint8_t>>>("get", [&] { return memory_.Get(key, max_bytes); });
  }
  Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) override {
    return Try<Status>("read", [&] { return memory_.Read(key, offset, out); });
  }
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override {
    return Try<Status>("put", [&] { return memory_.Put(key, bytes); });
  }
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override {
    // Copied, for it may be done late.
    return Try<Result<PutOutcome>>(
        "put-if-absent", [this, key = std::string(key), copy = std::vector<std::uint8_t>(bytes.begin(), bytes.end())] {
          return memory_.PutIfAbsent(key, copy);
        });
  }
  Result<ObjectInfo> DoStat(std::string_view key) override {
    return Try<Result<ObjectInfo>>("stat", [&] { return memory_.Stat(key); });
  }
  Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view start_after,
                                         std::size_t limit) override {
    return Try<Result<std::vector<ObjectInfo>>>("list", [&] { return memory_.List(prefix, start_after, limit); });
  }
  Status DoRemove(std::string_view key) override {
    return Try<Status>("remove", [&] { return memory_.Remove(key); });
  }
  Result<std::unique_ptr<Upload>> DoStartUpload(std::string_view key, std::uint64_t size_bytes) override {
    auto started = Try<Result<std::unique_ptr<Upload>>>("start", [&] { return memory_.StartUpload(key, size_bytes); });
    if (!started.ok()) return started;
    return std::unique_ptr<Upload>(std::make_unique<FaultyUpload>(this, std::move(started).value()));
  }

  MemoryStore memory_;
  std::mutex mutex_;
  std::map<std::string, std::deque<Fault>> plans_;  // guarded by mutex_
  std::map<std::string, Fault> always_;             // guarded by mutex_
  std::map<std::string, int> calls_;                // guarded by mutex_
  std::function<void()> late_;                      // guarded by mutex_
};

}  // namespace weightwire::testing
