// Bugs that a test plants at the seams of a world (its disks, buckets, boards and jobs), so that product code has none.
#pragma once

#include <cstdint>

#include "follow/mirror_faults.h"
#include "log/lying_store.h"

namespace weightwire::sim {

enum class PublisherFault : std::uint8_t {
  kNone,
  // In the store of a publisher (support/wrong_writer_store.h):
  kRecordBeforeParts,    // parts are put only once their record is there
  kPartKeyWithoutHash,   // every part of a version is put under one name
  kLostAnswerIsSuccess,  // a lost answer to a record is taken for "created"
  // In the jobs that rank 0's process executes:
  kVerdictBeforeRecord,      // an attempt to commit that failed is taken for one that succeeded
  kDeadlineFailsSentRecord,  // that a record was sent is forgotten, so that the deadline may fail its call
  // In what rank 0 hears of the board (sim/board_forger.h):
  kCommitWithoutLastRank,  // it does not wait for the last rank's report
  // In what a rank's caller passes on, while rank 0 hears forged digests of the ranks' bases:
  kNoRollBack,    // a rank makes its next draft from what a failed call has made
  kEpochIgnored,  // … from what was rolled back between making and enqueueing
};

struct Planted {
  weightwire::testing::MirrorFault mirror = weightwire::testing::MirrorFault::kNone;  // in every mirror's disk
  weightwire::testing::Lie gc_store = weightwire::testing::Lie::kNone;
  weightwire::testing::Lie follower_stores = weightwire::testing::Lie::kNone;
  PublisherFault publisher = PublisherFault::kNone;  // around every publisher
};

}  // namespace weightwire::sim
