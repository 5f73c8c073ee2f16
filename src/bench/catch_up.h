// Measures catching up: stages several versions and applies them as one change, beside staging and applying one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "bench/timings.h"
#include "cli/compute.h"

namespace weightwire {

// The figures of catching up with several versions. Seconds are those of the fastest round.
struct CatchUp {
  std::uint64_t versions = 0;
  std::uint64_t changed = 0;  // elements that differ afterwards
  Timings stage;              // all versions, until they are one change
  Timings apply;              // that change
  Timings apply_single;       // one version that changes the same elements
  Timings write;              // the floor: writing the elements, and nothing else
  std::uint64_t stage_peak_bytes = 0;
};

struct CatchUpModel {
  std::uint64_t size_bytes = 0;
  std::uint64_t rows = 0;  // of its matrices (random_model.h)
};

struct CatchUps {
  std::uint64_t model_bytes = 0;
  std::uint64_t tensors = 0;
  std::vector<CatchUp> rows;
};

// Ascending numbers of versions; the first one must be 1. Every result is compared with the version's bits.
Result<CatchUps> MeasureCatchingUp(const CatchUpModel& model, std::span<const std::uint64_t> versions,
                                   std::size_t rounds, const Compute& compute);

}  // namespace weightwire
