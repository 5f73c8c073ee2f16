// Samples: what the encoder knows of an entry before it codes it.
//
// Tables must be known before the first tile, and old and new are to be read from memory only once. So the encoder
// first looks at blocks spread evenly over an entry, or at all of it when it is small, and counts. Which units are
// looked at depends on sizes alone, so the bytes of a delta do not depend on the machine.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/encode/unit_reader.h"
#include "codec/format/tables.h"
#include "codec/kernels/kernels.h"

namespace weightwire {

// Counts for the units of one value of the class field.
struct FieldCounts {
  std::uint8_t field = 0;
  std::uint64_t units = 0;
  std::uint64_t changed = 0;
  std::size_t row = 0;  // where Sample has its buckets, if anything changed
};

// Takes memory for fields that occur only.
struct Sample {
  int unit_bytes = 2;
  std::uint64_t units = 0;  // of the entry
  std::uint64_t units_sampled = 0;
  std::uint64_t changed = 0;        // among the sampled
  bool complete = true;             // every unit was looked at: what was not seen does not occur
  std::vector<FieldCounts> fields;  // that occur, ascending

  // The changed units of a field by magnitude bucket; empty if there are none.
  [[nodiscard]] std::span<const std::uint64_t> buckets_of(const FieldCounts& counts) const;

  // Takes memory for so many rows at once.
  void ReserveRows(std::size_t rows);
  // For counting: the row of a field that has changes, all 0 at first. The next call may move it.
  std::size_t AddRow();
  [[nodiscard]] std::span<std::uint64_t> row(std::size_t at);

 private:
  std::vector<std::uint64_t> buckets_;
};

// The sum of samples of units of one width: each unit of a part counts as much as the part stands for.
class SampleSum {
 public:
  explicit SampleSum(int unit_bytes) { sum_.unit_bytes = unit_bytes; }
  void Add(const Sample& sample);
  [[nodiscard]] Sample Finish() &&;

 private:
  Sample sum_;  // without its fields
  std::array<FieldCounts, 256> fields_{};
};

// One unit in how many is to be looked at, given how many there are in all entries: small requests can afford a close
// look, and large ones do not need it.
std::uint64_t SampleThinning(std::uint64_t units_of_request);

// The new units of an entry: all of them in memory, or only those of the blocks that are looked at, one after another.
struct NewUnits {
  const std::uint8_t* units = nullptr;
  bool only_sampled = false;
};
// The blocks that are looked at, from a reader.
Result<std::vector<std::uint8_t>> ReadSampleBlocks(const UnitReader& reader, std::uint64_t units, int unit_bytes,
                                                   std::uint64_t thinning);

// Whether a sample looks at every unit of an entry.
bool SampleIsComplete(std::uint64_t units, std::uint64_t thinning);

// What can be known without a look at the bits themselves.
struct ChangeCount {
  std::uint64_t units_sampled = 0;
  std::uint64_t changed = 0;
  bool complete = true;
};
ChangeCount CountChanges(const std::uint8_t* old_units, NewUnits new_units, std::uint64_t units, int unit_bytes,
                         std::uint64_t thinning, const Kernels& kernels);

// Counts with the rule's field; `lowest` is not used yet.
Sample TakeSample(const std::uint8_t* old_units, NewUnits new_units, std::uint64_t units, int unit_bytes,
                  const ClassRule& rule, std::uint64_t thinning, const Kernels& kernels);

}  // namespace weightwire
