// One publisher and one follower on a bucket, version after version: what a version costs the trainer, the bucket and a
// mirror, each beside its floor in the same round.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "bench/setup.h"
#include "bench/timings.h"

namespace weightwire {

struct VersionCost {
  std::uint64_t model_bytes = 0;
  std::uint64_t changed = 0;  // elements, of the last version
  std::uint64_t elements = 0;
  std::uint64_t delta_bytes = 0;

  Timings encode;   // the encoder alone: the same two states, base brought up to date in the same pass
  Timings publish;  // what the caller of publish waits for

  // The most of any version. Parts: those of a version, of which there is one here.
  std::uint64_t bytes_beyond_delta = 0;
  std::uint64_t publisher_requests = 0;
  std::uint64_t follower_requests = 0;

  Timings read;           // the touched tensors, from the mirror's files, once
  Timings write_journal;  // as many bytes as the journal has, written to the mirror's disk and synced
  Timings fetch;          // of the mirror: the part fetched and hashed,
  Timings stage;          // decoded and verified,
  Timings apply;          // journal on the disk, weights written
  Timings mirror;         // all of them: from the record seen to a mirror that is readable and crash-safe
  Timings sync;           // afterwards: weights on the disk
  std::uint64_t journal_bytes = 0;
};

Result<VersionCost> MeasureVersions(const BenchSetup& setup, std::uint64_t model_bytes, std::size_t rounds);

}  // namespace weightwire
