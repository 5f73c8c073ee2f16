// A follower's connection to the bucket, which checks the follower's duties, below what a test plants.
#pragma once

#include "log/lying_store.h"
#include "sim/lease_check.h"
#include "sim/sim_bucket.h"
#include "sim/world.h"

namespace weightwire::sim {

class FollowerStore {
 public:
  FollowerStore(Bucket& bucket, Machine& machine, bool keeps_lease, weightwire::testing::Lie lie)
      : client_(bucket, machine), check_(machine.world(), machine.name()), lying_(client_, lie) {
    if (keeps_lease) client_.SetLeaseCheck(&check_);
  }

  // What the follower uses.
  [[nodiscard]] Store& store() { return lying_; }
  // Call before each step of the follower.
  void BeginStep() { check_.BeginStep(); }

 private:
  BucketClient client_;
  LeaseCheck check_;
  weightwire::testing::LyingStore lying_;
};

}  // namespace weightwire::sim
