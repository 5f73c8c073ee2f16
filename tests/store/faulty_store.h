// A store in memory that fails as told: the next call of an operation has the next fault planned for it.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "store/wrappers/forwarding_store.h"
#include "support/memory_store.h"

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

class FaultyStore final : public ForwardingStore {
 public:
  explicit FaultyStore(const Clock* clock) : ForwardingStore(std::make_unique<MemoryStore>(clock)) {}

  // For the next calls of an operation (NameOf). kLate is for "put-if-absent" alone.
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
  Store& memory() { return inner(); }

  [[nodiscard]] std::string Name() const override { return "faulty"; }

 private:
  Status Around(StoreRequest& request, const Send& send) override {
    const std::string operation(NameOf(request.operation));
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
      if (fault == Fault::kLate) late_ = std::exchange(late_put_, nullptr);
    }
    Status result = Meet(fault, send);
    if (late) late();
    return result;
  }
  static Status Meet(Fault fault, const Send& send) {
    switch (fault) {
      case Fault::kNone:
        return send();
      case Fault::kUnavailable:
        return Error(ErrorCode::kUnavailable, "not now");
      case Fault::kLostAnswer:
        (void)send();
        return Error(ErrorCode::kUnknownOutcome, "no answer");
      case Fault::kLostRequest:
      case Fault::kLate:
        return Error(ErrorCode::kUnknownOutcome, "no answer");
      case Fault::kRefused:
        return Error(ErrorCode::kRefused, "not allowed");
      case Fault::kDamaged:
        break;
    }
    return Error(ErrorCode::kCorrupt, "damaged");
  }
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override {
    {
      const std::lock_guard lock(mutex_);
      // Copied, because it may be done late.
      late_put_ = [this, key = std::string(key), copy = std::vector<std::uint8_t>(bytes.begin(), bytes.end())] {
        (void)inner().PutIfAbsent(key, copy);
      };
    }
    return ForwardingStore::DoPutIfAbsent(key, bytes);
  }

  std::mutex mutex_;
  std::map<std::string, std::deque<Fault>> plans_;  // guarded by mutex_
  std::map<std::string, Fault> always_;             // guarded by mutex_
  std::map<std::string, int> calls_;                // guarded by mutex_
  std::function<void()> late_;                      // guarded by mutex_
  std::function<void()> late_put_;                  // the request that kLate delays; guarded by mutex_
};

}  // namespace weightwire::testing
