// The encoder's scalar kernels: plain C++, the definition the others are compared with.
#include "codec/format/units.h"
#include "codec/kernels/convert_scalar.h"
#include "codec/kernels/encode_events.h"
#include "codec/kernels/encode_kernels.h"
#include "codec/kernels/kernels.h"

namespace weightwire {
namespace {

void CountFields(const std::uint8_t* units, std::uint32_t count, int unit_bytes, const ClassRule& rule,
                 FieldCount& counts) {
  WithUnit(unit_bytes, [&]<typename Unit>() {
    for (std::uint32_t i = 0; i < count; ++i) {
      ++counts[static_cast<std::uint32_t>(LoadUnit<Unit>(units, i) >> rule.shift) & rule.FieldMask()];
    }
  });
}

template <typename Unit>
ScanResult ScanUnits(const ScanChunk& chunk, const ExpandedTables& tables, std::uint32_t* times,
                     const FoundChanges& found) {
  const int shift = tables.rule.shift;
  const std::uint32_t mask = tables.rule.FieldMask();
  ScanResult result{0, chunk.time};
  std::uint32_t* block_times = times + chunk.first_unit / kTimeBlock;
  for (std::uint32_t i = 0; i < chunk.count; ++i) {
    if (!tables.uniform && i % kTimeBlock == 0) block_times[i / kTimeBlock] = static_cast<std::uint32_t>(result.time);
    const Unit old_unit = LoadUnit<Unit>(chunk.old_units, i);
    const Unit new_unit = LoadUnit<Unit>(chunk.new_units, i);
    result.time += tables.rate_of_field[static_cast<std::uint32_t>(old_unit >> shift) & mask];
    if (old_unit != new_unit) {
      found.positions[result.found] = chunk.first_unit + i;
      StoreUnit<Unit>(found.old_units, result.found, old_unit);
      StoreUnit<Unit>(found.new_units, result.found, new_unit);
      found.ends[result.found] = static_cast<std::uint32_t>(result.time);
      ++result.found;
    }
  }
  if (!tables.uniform) {
    block_times[(chunk.count + kTimeBlock - 1) / kTimeBlock] = static_cast<std::uint32_t>(result.time);
  }
  return result;
}

ScanResult Scan(const ScanChunk& chunk, int unit_bytes, const ExpandedTables& tables, std::uint32_t* times,
                const FoundChanges& found) {
  for (std::uint32_t i = 0; chunk.floats != nullptr && i < chunk.count; ++i) {
    StoreUnit(chunk.made, i, ToBf16(LoadUnit<std::uint32_t>(chunk.floats, i)));
  }
  return WithUnit(unit_bytes, [&]<typename Unit>() { return ScanUnits<Unit>(chunk, tables, times, found); });
}

EventCounts MakeEvents(const SparseChanges& changes, int unit_bytes, const ExpandedTables& tables, RansEvent* events) {
  return WithUnit(unit_bytes, [&]<typename Unit>() -> EventCounts {
    SparseEventWriter<Unit> writer(changes, tables, events);
    for (std::size_t k = 0; k < changes.changed; ++k) writer.Append(k);
    return {static_cast<std::size_t>(writer.Finish() - events), writer.single_steps()};
  });
}

void PushEvents(std::span<PushLane> lanes) {
  for (PushLane& lane : lanes) {
    RansEncoder coder;
    std::uint32_t* words = lane.words;
    for (std::size_t i = lane.count; i-- > 0;) coder.Push(lane.events[i], words);
    lane.word_count = static_cast<std::size_t>(words - lane.words);
    lane.state = coder.state();
  }
}

}  // namespace

const EncodeKernels* ScalarEncodeKernels() {
  static constexpr EncodeKernels kKernels = {CountFields, Scan, MakeEvents, PushEvents};
  return &kKernels;
}

}  // namespace weightwire
