#include "codec/encode/tile_encoder.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "codec/format/order.h"
#include "codec/format/step_coding.h"
#include "codec/format/units.h"
#include "codec/kernels/encode_events.h"

namespace weightwire {

Result<const std::uint8_t*> TileEncoder::NewUnits(const TileInput& tile, std::uint32_t begin, std::uint32_t count,
                                                  int unit_bytes) {
  if (tile.reader == nullptr) return tile.new_units + std::size_t{begin} * static_cast<std::size_t>(unit_bytes);
  chunk_.resize(kChunkUnits * static_cast<std::size_t>(unit_bytes));
  const std::uint64_t first = tile.first_unit + begin;
  WW_RETURN_IF_ERROR(tile.reader->Read({&first, 1}, count, chunk_.data()));
  return chunk_.data();
}

template <typename Unit>
Status TileEncoder::FindChanged(const TileInput& tile, Lane& lane) {
  std::array<std::uint16_t, kChunkUnits + 64> in_chunk;
  std::size_t total = 0;
  for (std::uint32_t begin = 0; begin < tile.count; begin += kChunkUnits) {
    const std::uint32_t count = std::min(kChunkUnits, tile.count - begin);
    const std::uint8_t* old_units = tile.old_units + std::size_t{begin} * sizeof(Unit);
    WW_TRY(const std::uint8_t* new_units, NewUnits(tile, begin, count, sizeof(Unit)));
    const std::uint32_t found = kernels_->find_changed(old_units, new_units, count, sizeof(Unit), in_chunk.data());
    lane.MakeRoom(total + found, sizeof(Unit));
    // The bits are taken along now, while they are at hand.
    for (std::uint32_t k = 0; k < found; ++k) {
      lane.positions[total + k] = begin + in_chunk[k];
      StoreUnit<Unit>(lane.old_units.data(), total + k, LoadUnit<Unit>(old_units, in_chunk[k]));
      StoreUnit<Unit>(lane.new_units.data(), total + k, LoadUnit<Unit>(new_units, in_chunk[k]));
    }
    total += found;
  }
  lane.changed = total;
  return Ok();
}

void TileEncoder::Lane::MakeRoom(std::size_t count, std::size_t unit_bytes) {
  if (positions.size() < count) positions.resize(2 * count);
  if (old_units.size() < count * unit_bytes) {
    old_units.resize(2 * count * unit_bytes);
    new_units.resize(2 * count * unit_bytes);
  }
}

std::size_t TileEncoder::memory_bytes() const {
  std::size_t bytes = times_.capacity() * sizeof(times_[0]) + chunk_.capacity();
  for (const Lane& lane : lanes_) {
    bytes += (lane.positions.capacity() + lane.ends.capacity() + lane.words.capacity()) * sizeof(std::uint32_t) +
             lane.old_units.capacity() + lane.new_units.capacity() + lane.stream.capacity() +
             lane.events.capacity() * sizeof(RansEvent);
  }
  return bytes;
}

RansEvent* TileEncoder::Lane::EventsRoom(std::size_t count) {
  const std::size_t all = kPushPad + count + kEventRoom;
  if (events.size() < all) events.resize(all);  // the first kPushPad of them stay as they are, certain
  return events.data() + kPushPad;
}

template <typename Unit>
Status TileEncoder::SparseEvents(const TileInput& tile, const ExpandedTables& tables, Lane& lane) {
  const EncodeKernels& kernels = *kernels_->encode;
  if (times_.size() < TimesRoom(tile.count)) times_.resize(TimesRoom(tile.count));
  ScanResult scanned;
  lane.changed = 0;
  // What a reader makes should not push what it makes it from out of the first cache.
  const std::uint32_t step = tile.reader != nullptr ? kChunkUnits / 2 : kChunkUnits;
  for (std::uint32_t begin = 0; begin < tile.count; begin += step) {
    const std::uint32_t count = std::min(step, tile.count - begin);
    ScanChunk chunk = {tile.old_units + std::size_t{begin} * sizeof(Unit), nullptr, begin, count, scanned.time};
    if (tile.reader != nullptr) chunk.floats = tile.reader->FloatsOf(tile.first_unit + begin, count);
    if (chunk.floats != nullptr) {
      chunk_.resize(kChunkUnits * sizeof(Unit));
      chunk.new_units = chunk.made = chunk_.data();
    } else {
      WW_TRY(chunk.new_units, NewUnits(tile, begin, count, sizeof(Unit)));
    }
    lane.MakeRoom(lane.changed + chunk.count + kScanRoom, sizeof(Unit));
    lane.ends.resize(lane.positions.size());
    const FoundChanges found = {lane.positions.data() + lane.changed,
                                lane.old_units.data() + lane.changed * sizeof(Unit),
                                lane.new_units.data() + lane.changed * sizeof(Unit), lane.ends.data() + lane.changed};
    scanned = kernels.scan(chunk, sizeof(Unit), tables, times_.data(), found);
    lane.changed += scanned.found;
  }
  lane.event_count = 0;
  lane.single_steps = 0;
  if (lane.changed == 0) return Ok();  // a tile in which nothing changes takes no bytes
  const SparseChanges changes = {tile.old_units,        tile.count,
                                 times_.data(),         scanned.time,
                                 lane.changed,          lane.positions.data(),
                                 lane.old_units.data(), lane.new_units.data(),
                                 lane.ends.data()};
  RansEvent* const events = lane.EventsRoom(MostEvents(lane.changed, scanned.time));
  const EventCounts counts = kernels.make_events(changes, sizeof(Unit), tables, events);
  lane.event_count = counts.events;
  lane.single_steps = counts.single_steps;
  return Ok();
}

template <typename Unit>
void TileEncoder::DenseEvents(const TileInput& tile, const ExpandedTables& tables, Lane& lane) {
  RansEvent* const events = lane.EventsRoom(kMaxEventsPerUnit * std::size_t{tile.count});
  RansEvent* event = events;
  std::size_t change = 0;
  for (std::uint32_t i = 0; i < tile.count; ++i) {
    const Unit old_unit = LoadUnit<Unit>(tile.old_units, i);
    const std::uint32_t field = static_cast<std::uint32_t>(old_unit >> tables.rule.shift) & tables.rule.FieldMask();
    const std::uint32_t unit_class = tables.class_of_field[field];
    if (change == lane.changed || lane.positions[change] != i) {
      *event++ = SymbolOf(tables, unit_class, 0);
      continue;
    }
    const Unit new_unit = LoadUnit<Unit>(lane.new_units.data(), change++);
    const Step step = StepBetween<Unit>(old_unit, new_unit, tables.rule.order);
    const Bucket bucket = BucketOf(step.magnitude);
    *event++ = SymbolOf(tables, unit_class, bucket.symbol + 1u);
    event = AppendRawBits((bucket.extra << 1) | (step.down ? 1 : 0), bucket.extra_bits + 1, event);
  }
  lane.event_count = static_cast<std::size_t>(event - events);
}

Status TileEncoder::EncodeSparse(std::span<const TileInput> tiles, int unit_bytes, const ExpandedTables& tables,
                                 const TileDone& done) {
  WW_CHECK(tiles.size() <= kLanes);
  WW_RETURN_IF_ERROR(WithUnit(unit_bytes, [&]<typename Unit>() -> Status {
    for (std::size_t k = 0; k < tiles.size(); ++k) {
      WW_RETURN_IF_ERROR(SparseEvents<Unit>(tiles[k], tables, lanes_[k]));
      WW_RETURN_IF_ERROR(done(k));
    }
    return Ok();
  }));
  PushEvents(tiles.size());
  return Ok();
}

Status TileEncoder::EncodeDense(std::span<const TileInput> tiles, int unit_bytes, const ExpandedTables& tables,
                                const TileDone& done) {
  WW_CHECK(tiles.size() <= kLanes);
  WW_RETURN_IF_ERROR(WithUnit(unit_bytes, [&]<typename Unit>() -> Status {
    for (std::size_t k = 0; k < tiles.size(); ++k) {
      WW_RETURN_IF_ERROR(FindChanged<Unit>(tiles[k], lanes_[k]));
      DenseEvents<Unit>(tiles[k], tables, lanes_[k]);
      WW_RETURN_IF_ERROR(done(k));
    }
    return Ok();
  }));
  PushEvents(tiles.size());
  return Ok();
}

Status TileEncoder::Compare(std::span<const TileInput> tiles, int unit_bytes, const TileDone& done) {
  WW_CHECK(tiles.size() <= kLanes);
  return WithUnit(unit_bytes, [&]<typename Unit>() -> Status {
    for (std::size_t k = 0; k < tiles.size(); ++k) {
      WW_RETURN_IF_ERROR(FindChanged<Unit>(tiles[k], lanes_[k]));
      WW_RETURN_IF_ERROR(done(k));
    }
    return Ok();
  });
}

void TileEncoder::PushEvents(std::size_t lane_count) {
  std::array<PushLane, kLanes> pushes;
  for (std::size_t k = 0; k < lane_count; ++k) {
    Lane& lane = lanes_[k];
    if (lane.words.size() < lane.event_count + 1) lane.words.resize(lane.event_count + 1);
    pushes[k] = {lane.EventsRoom(lane.event_count), lane.event_count, lane.words.data()};
  }
  kernels_->encode->push_events(std::span(pushes).first(lane_count));
  for (std::size_t k = 0; k < lane_count; ++k) {
    lanes_[k].stream.clear();
    if (lanes_[k].event_count == 0) continue;
    RansEncoder::Finish({pushes[k].words, pushes[k].word_count}, pushes[k].state, lanes_[k].stream);
  }
}

}  // namespace weightwire
