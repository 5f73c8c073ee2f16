// A bucket that every machine of a world can reach, and the client a machine reaches it by, which fails in every way a
// network can: a request that does not arrive, an answer that gets lost, a write that arrives later, damaged bytes.
//
// The bucket itself is right, and watches over what must never be: a record or part that changes or goes where it may
// not, and the removal of what a lease protects.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "log/lease.h"
#include "sim/lease_check.h"
#include "sim/world.h"
#include "store/store.h"

namespace weightwire::sim {

class Bucket {
 public:
  explicit Bucket(World& world) : world_(world) {}

  struct Object {
    std::vector<std::uint8_t> bytes;
    WallTime last_modified;
  };
  [[nodiscard]] const std::map<std::string, Object, std::less<>>& objects() const { return objects_; }

  // Whether there was such an object, and somebody has removed it.
  [[nodiscard]] bool WasRemoved(std::string_view key) const { return removed_.contains(key); }

  // Called when a record appears: its version and bytes.
  std::function<void(std::string_view key, std::span<const std::uint8_t> bytes)> on_record;

  // Called when an anchor's manifest is put by somebody who waits for the answer.
  std::function<void(std::string_view key, std::span<const std::uint8_t> bytes)> on_manifest;

  void Put(std::string_view key, std::span<const std::uint8_t> bytes);
  [[nodiscard]] bool PutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes);
  // When somebody last read the leases (World::now): their list, and then each.
  struct LeaseReads {
    std::uint64_t listed_at = 0;
    std::map<std::string, std::uint64_t, std::less<>> got_at;
  };
  // `reads` are the remover's, if it ever looked.
  void Remove(std::string_view key, const std::optional<LeaseReads>& reads);

  // A write whose sender has given up on it, and that arrives after all.
  void Later(std::string key, std::vector<std::uint8_t> bytes, bool only_if_absent);
  void DeliverLate();

 private:
  struct LeaseEvent {
    std::uint64_t at;
    WallTime time;
    std::optional<Lease> lease;  // none: removed, or unreadable
  };
  struct LateWrite {
    std::string key;
    std::vector<std::uint8_t> bytes;
    bool only_if_absent;
  };

  void Store(std::string_view key, std::span<const std::uint8_t> bytes);
  void CheckLeases(std::string_view key, const LeaseReads& reads);

  World& world_;
  std::map<std::string, Object, std::less<>> objects_;
  std::map<std::string, std::vector<LeaseEvent>, std::less<>> leases_;  // the history of each
  std::vector<LateWrite> late_;
  std::set<std::string, std::less<>> removed_;
};

// One machine's way to the bucket.
class BucketClient final : public weightwire::Store {
 public:
  // An answer may get lost because the whole way to the bucket is gone, and then for up to `longest_outage`.
  BucketClient(Bucket& bucket, Machine& machine, std::chrono::nanoseconds longest_outage = {})
      : bucket_(bucket), machine_(machine), longest_outage_(longest_outage) {}

  // For a follower that keeps a lease. `check` must outlive the client's last request.
  void SetLeaseCheck(LeaseCheck* check) { lease_check_ = check; }

  // While it is unplugged no request arrives, even when nothing else goes wrong.
  void Unplug(bool unplugged) { unplugged_ = unplugged; }

  [[nodiscard]] std::string Name() const override { return "sim://bucket"; }
  Result<WallTime> Now() override;

 private:
  Result<std::vector<std::uint8_t>> DoGet(std::string_view key, std::uint64_t max_bytes) override;
  Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) override;
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<ObjectInfo> DoStat(std::string_view key) override;
  Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view start_after,
                                         std::size_t limit) override;
  Status DoRemove(std::string_view key) override;

  // The request is on its way: an error if it does not arrive.
  Status Send(std::string_view what, std::string_view key);
  void Damage(std::span<std::uint8_t> bytes);
  // Whether the answer of a write gets lost, and what became of it.
  enum class Fate : std::uint8_t { kAnswered, kLostDone, kLostNotDone, kLostLater };
  Fate WriteFate();

  Bucket& bucket_;
  Machine& machine_;
  const std::chrono::nanoseconds longest_outage_;
  std::chrono::nanoseconds down_until_{0};
  bool unplugged_ = false;
  std::optional<Bucket::LeaseReads> lease_reads_;
  LeaseCheck* lease_check_ = nullptr;
};

}  // namespace weightwire::sim
