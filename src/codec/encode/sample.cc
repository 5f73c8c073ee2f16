#include "codec/encode/sample.h"

#include <algorithm>
#include <array>

#include "codec/format/order.h"
#include "codec/format/units.h"
#include "codec/kernels/encode_kernels.h"
#include "codec/kernels/prefetch.h"

namespace weightwire {

namespace {

// About this many units of a request are looked at, and of one that has more than kLargeRequest times as many fewer,
// down to a third; but never less than one in kMostThinning, and of each entry at least kLeastUnits.
constexpr std::uint64_t kSampleUnits = 1 << 21;
constexpr std::uint64_t kLargeRequest = 16;
constexpr std::uint64_t kMostThinning = 256;
constexpr std::uint64_t kLeastUnits = 1 << 13;
constexpr std::uint64_t kSampleBlockUnits = 1024;
// Fields with changes that a sample has room for from the start.
constexpr std::size_t kUsualRows = 12;

// Counts by field while blocks are looked at.
struct Tallies {
  FieldCount units{};
  FieldCount changed{};
  std::array<std::size_t, 256> rows{};  // of fields with changes
};

template <typename Unit>
void CountSampleBlock(const std::uint8_t* old_units, const std::uint8_t* new_units, std::uint32_t count,
                      const ClassRule& rule, const Kernels& kernels, Tallies& tallies, Sample& sample) {
  const std::uint32_t mask = rule.FieldMask();
  const int shift = rule.shift;
  const auto field_at = [&](std::uint32_t i) {
    return static_cast<std::uint32_t>(LoadUnit<Unit>(old_units, i) >> shift) & mask;
  };
  kernels.encode->count_fields(old_units, count, sizeof(Unit), rule, tallies.units);
  std::array<std::uint16_t, kChunkUnits + 64> changed;
  const std::uint32_t found = kernels.find_changed(old_units, new_units, count, sizeof(Unit), changed.data());
  for (std::uint32_t k = 0; k < found; ++k) {
    const std::uint32_t field = field_at(changed[k]);
    const Step step =
        StepBetween<Unit>(LoadUnit<Unit>(old_units, changed[k]), LoadUnit<Unit>(new_units, changed[k]), rule.order);
    if (step.magnitude == 0) continue;  // somebody writes while we read, and it is as it was again
    if (tallies.changed[field]++ == 0) tallies.rows[field] = sample.AddRow();
    ++sample.row(tallies.rows[field])[BucketOf(step.magnitude).symbol];
  }
  sample.changed += found;
  sample.units_sampled += count;
}

// The blocks of an entry that are looked at.
class SampleBlocks {
 public:
  SampleBlocks(std::uint64_t units, std::uint64_t thinning)
      : units_(units),
        all_((units + kSampleBlockUnits - 1) / kSampleBlockUnits),
        wanted_(std::min(all_, std::max(kLeastUnits / kSampleBlockUnits, (all_ + thinning - 1) / thinning))) {}

  [[nodiscard]] std::uint64_t count() const { return wanted_; }
  [[nodiscard]] bool complete() const { return wanted_ == all_; }
  [[nodiscard]] std::uint64_t begin(std::uint64_t k) const { return k * all_ / wanted_ * kSampleBlockUnits; }
  // All but the last block of an entry are of the same size.
  [[nodiscard]] std::uint32_t size(std::uint64_t k) const {
    return static_cast<std::uint32_t>(std::min(kSampleBlockUnits, units_ - begin(k)));
  }

 private:
  std::uint64_t units_;
  std::uint64_t all_;
  std::uint64_t wanted_;
};

// The new units of a block.
const std::uint8_t* UnitsOf(const NewUnits& new_units, const SampleBlocks& blocks, std::uint64_t k, int unit_bytes) {
  const std::uint64_t first = new_units.only_sampled ? k * kSampleBlockUnits : blocks.begin(k);
  return new_units.units + first * static_cast<std::uint64_t>(unit_bytes);
}

}  // namespace

std::size_t Sample::AddRow() {
  const std::size_t at = buckets_.size();
  buckets_.resize(at + static_cast<std::size_t>(BucketCount(8 * unit_bytes)));
  return at;
}

std::span<std::uint64_t> Sample::row(std::size_t at) {
  return std::span(buckets_).subspan(at, static_cast<std::size_t>(BucketCount(8 * unit_bytes)));
}

std::span<const std::uint64_t> Sample::buckets_of(const FieldCounts& counts) const {
  if (counts.changed == 0) return {};
  return std::span(buckets_).subspan(counts.row, static_cast<std::size_t>(BucketCount(8 * unit_bytes)));
}

void Sample::ReserveRows(std::size_t rows) {
  buckets_.reserve(rows * static_cast<std::size_t>(BucketCount(8 * unit_bytes)));
}

void SampleSum::Add(const Sample& sample) {
  WW_CHECK(sum_.unit_bytes == sample.unit_bytes);
  const std::uint64_t weight =
      sample.units_sampled == 0 ? 1 : std::max<std::uint64_t>(1, sample.units / sample.units_sampled);
  sum_.complete = sum_.complete && sample.complete;
  sum_.units += sample.units;
  sum_.units_sampled += sample.units_sampled * weight;
  sum_.changed += sample.changed * weight;
  for (const FieldCounts& from : sample.fields) {
    FieldCounts& to = fields_[from.field];
    to.units += from.units * weight;
    if (from.changed == 0) continue;
    if (to.changed == 0) to.row = sum_.AddRow();
    to.changed += from.changed * weight;
    const std::span<const std::uint64_t> buckets = sample.buckets_of(from);
    const std::span<std::uint64_t> row = sum_.row(to.row);
    for (std::size_t b = 0; b < buckets.size(); ++b) row[b] += buckets[b] * weight;
  }
}

Sample SampleSum::Finish() && {
  for (std::size_t field = 0; field < fields_.size(); ++field) {
    if (fields_[field].units == 0) continue;
    fields_[field].field = static_cast<std::uint8_t>(field);
    sum_.fields.push_back(fields_[field]);
  }
  return std::move(sum_);
}

std::uint64_t SampleThinning(std::uint64_t units_of_request) {
  const std::uint64_t thinning = units_of_request / kSampleUnits;
  const std::uint64_t more = thinning > kLargeRequest ? 3 * (thinning - kLargeRequest) : 0;
  return std::clamp<std::uint64_t>(thinning + more, 1, kMostThinning);
}

Result<std::vector<std::uint8_t>> ReadSampleBlocks(const UnitReader& reader, std::uint64_t units, int unit_bytes,
                                                   std::uint64_t thinning) {
  const SampleBlocks blocks(units, thinning);
  std::vector<std::uint8_t> read(blocks.count() * kSampleBlockUnits * static_cast<std::size_t>(unit_bytes));
  std::vector<std::uint64_t> firsts;
  for (std::uint64_t k = 0; k < blocks.count() && blocks.size(k) == kSampleBlockUnits; ++k)
    firsts.push_back(blocks.begin(k));
  if (!firsts.empty()) WW_RETURN_IF_ERROR(reader.Read(firsts, kSampleBlockUnits, read.data()));
  if (firsts.size() < blocks.count()) {
    const std::uint64_t last = blocks.begin(firsts.size());
    std::uint8_t* const to = read.data() + firsts.size() * kSampleBlockUnits * static_cast<std::size_t>(unit_bytes);
    WW_RETURN_IF_ERROR(reader.Read({&last, 1}, blocks.size(firsts.size()), to));
  }
  return read;
}

bool SampleIsComplete(std::uint64_t units, std::uint64_t thinning) { return SampleBlocks(units, thinning).complete(); }

Sample TakeSample(const std::uint8_t* old_units, NewUnits new_units, std::uint64_t units, int unit_bytes,
                  const ClassRule& rule, std::uint64_t thinning, const Kernels& kernels) {
  Sample sample;
  sample.unit_bytes = unit_bytes;
  sample.units = units;
  sample.ReserveRows(kUsualRows);
  Tallies tallies;
  const SampleBlocks blocks(units, thinning);
  sample.complete = blocks.complete();
  WithUnit(unit_bytes, [&]<typename Unit>() {
    for (std::uint64_t k = 0; k < blocks.count(); ++k) {
      const std::uint64_t next = std::min(k + 1, blocks.count() - 1);
      const std::size_t next_bytes = blocks.size(next) * sizeof(Unit);
      Prefetch(old_units + blocks.begin(next) * sizeof(Unit), next_bytes);
      Prefetch(UnitsOf(new_units, blocks, next, sizeof(Unit)), next_bytes);
      CountSampleBlock<Unit>(old_units + blocks.begin(k) * sizeof(Unit), UnitsOf(new_units, blocks, k, sizeof(Unit)),
                             blocks.size(k), rule, kernels, tallies, sample);
    }
  });
  sample.fields.reserve(
      static_cast<std::size_t>(std::ranges::count_if(tallies.units, [](std::uint64_t count) { return count != 0; })));
  for (std::size_t field = 0; field < tallies.changed.size(); ++field) {
    if (tallies.units[field] == 0) continue;
    sample.fields.push_back(
        {static_cast<std::uint8_t>(field), tallies.units[field], tallies.changed[field], tallies.rows[field]});
  }
  return sample;
}

ChangeCount CountChanges(const std::uint8_t* old_units, NewUnits new_units, std::uint64_t units, int unit_bytes,
                         std::uint64_t thinning, const Kernels& kernels) {
  ChangeCount counted;
  std::array<std::uint16_t, kChunkUnits + 64> changed;
  const SampleBlocks blocks(units, thinning);
  counted.complete = blocks.complete();
  for (std::uint64_t k = 0; k < blocks.count(); ++k) {
    counted.units_sampled += blocks.size(k);
    counted.changed +=
        kernels.find_changed(old_units + blocks.begin(k) * static_cast<std::uint64_t>(unit_bytes),
                             UnitsOf(new_units, blocks, k, unit_bytes), blocks.size(k), unit_bytes, changed.data());
  }
  return counted;
}

}  // namespace weightwire
