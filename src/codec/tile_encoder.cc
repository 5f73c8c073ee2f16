#include "codec/tile_encoder.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "codec/order.h"
#include "codec/step_coding.h"
#include "codec/units.h"
#include "codec/waiting.h"

namespace weightwire {

namespace {

// A step takes a symbol and at most two pieces of raw bits, a change in a sparse tile one event more.
constexpr std::size_t kMaxEventsPerUnit = 4;

RansEvent SymbolOf(const ExpandedTables& tables, std::uint32_t unit_class, std::uint32_t symbol) {
  const SymbolEvent& event = tables.events[unit_class * tables.stride + symbol];
  WW_CHECK(event.possible);
  return event.event;
}

}  // namespace

template <typename Unit>
void TileEncoder::FindChanged(const TileInput& tile, Lane& lane) const {
  std::array<std::uint16_t, kChunkUnits + 64> in_chunk;
  std::size_t total = 0;
  for (std::uint32_t begin = 0; begin < tile.count; begin += kChunkUnits) {
    const std::size_t offset = std::size_t{begin} * sizeof(Unit);
    const std::uint32_t found =
        kernels_.find_changed(tile.old_units + offset, tile.new_units + offset,
                              std::min(kChunkUnits, tile.count - begin), sizeof(Unit), in_chunk.data());
    lane.MakeRoom(total + found, sizeof(Unit));
    // The bits are taken along now, while they are at hand.
    for (std::uint32_t k = 0; k < found; ++k) {
      const std::uint32_t at = begin + in_chunk[k];
      lane.positions[total + k] = at;
      StoreUnit<Unit>(lane.old_units.data(), total + k, LoadUnit<Unit>(tile.old_units, at));
      StoreUnit<Unit>(lane.new_units.data(), total + k, LoadUnit<Unit>(tile.new_units, at));
    }
    total += found;
  }
  lane.changed = total;
}

void TileEncoder::Lane::MakeRoom(std::size_t count, std::size_t unit_bytes) {
  if (positions.size() < count) positions.resize(2 * count);
  if (old_units.size() < count * unit_bytes) {
    old_units.resize(2 * count * unit_bytes);
    new_units.resize(2 * count * unit_bytes);
  }
}

template <typename Unit>
void TileEncoder::SparseEvents(const TileInput& tile, const ExpandedTables& tables, Lane& lane) {
  const int shift = tables.rule.shift;
  const std::uint32_t mask = tables.rule.FieldMask();
  std::uint64_t total = 0;
  if (tables.uniform) {
    total = std::uint64_t{tables.rates[0]} * tile.count;
  } else {
    times_.resize(TimesRoom(tile.count));
    total = kernels_.sum_rates(tile.old_units, tile.count, sizeof(Unit), tables, times_.data());
  }
  const std::size_t changed = lane.changed;
  located_.resize(std::max(located_.size(), changed));
  kernels_.locate_changes(tile.old_units, tile.count, sizeof(Unit), tables, times_.data(),
                          std::span(lane.positions).first(changed), located_.data());
  // Between two changes there is at most one survival for each horizon of time.
  lane.events.resize(std::max(lane.events.size(), kMaxEventsPerUnit * changed + total / kHorizon + 2));
  RansEvent* event = lane.events.data();

  const auto rate_at = [&](std::uint32_t index) {
    return tables.rate_of_field[static_cast<std::uint32_t>(LoadUnit<Unit>(tile.old_units, index) >> shift) & mask];
  };
  // Waits of a horizon or more from unit `next` on, one event each, until unit `until` is nearer than that; returns how
  // far it is then.
  const auto survive = [&](std::uint32_t next, std::uint32_t until) -> std::uint32_t {
    std::uint32_t time = 0;
    for (; next < until; ++next) {
      if (time >= kHorizon) {
        *event++ = SurvivalEvent(Waiting(kHorizon));
        time = 0;
      }
      time += rate_at(next);
    }
    return time;
  };
  const bool may_wrap = total >> 32 != 0;  // located waits are modulo 2^32
  std::uint32_t next = 0;                  // the first unit not yet passed
  for (std::size_t k = 0; k < changed; ++k) {
    const std::uint32_t index = lane.positions[k];
    const Unit old_unit = LoadUnit<Unit>(lane.old_units.data(), k);
    const std::uint32_t field = static_cast<std::uint32_t>(old_unit >> shift) & mask;
    LocatedChange located = located_[k];
    if (located.wait >= kHorizon || may_wrap) [[unlikely]] {
      std::uint32_t wait = survive(next, index);
      if (wait >= kHorizon) {
        *event++ = SurvivalEvent(Waiting(kHorizon));
        wait = 0;
      }
      located = {wait, Waiting(wait), Waiting(std::min(wait + tables.rate_of_field[field], kHorizon))};
    }
    const Step step = StepBetween<Unit>(old_unit, LoadUnit<Unit>(lane.new_units.data(), k), tables.rule.order);
    *event++ = ChangeEvent(located.waiting_begin, located.waiting_end, step.down);
    const Bucket bucket = BucketOf(step.magnitude);
    *event++ = SymbolOf(tables, tables.class_of_field[field], bucket.symbol);
    event = AppendRawBits(bucket.extra, bucket.extra_bits, event);
    next = index + 1;
  }
  const std::uint32_t rest = survive(next, tile.count);
  if (rest > kHorizon) {
    *event++ = SurvivalEvent(Waiting(kHorizon));
    *event++ = SurvivalEvent(Waiting(0));
  } else {
    *event++ = SurvivalEvent(Waiting(rest));
  }
  lane.event_count = static_cast<std::size_t>(event - lane.events.data());
}

template <typename Unit>
void TileEncoder::DenseEvents(const TileInput& tile, const ExpandedTables& tables, Lane& lane) {
  lane.events.resize(std::max<std::size_t>(lane.events.size(), kMaxEventsPerUnit * tile.count));
  RansEvent* event = lane.events.data();
  for (std::uint32_t i = 0; i < tile.count; ++i) {
    const Unit old_unit = LoadUnit<Unit>(tile.old_units, i);
    const Unit new_unit = LoadUnit<Unit>(tile.new_units, i);
    const std::uint32_t field = static_cast<std::uint32_t>(old_unit >> tables.rule.shift) & tables.rule.FieldMask();
    const std::uint32_t unit_class = tables.class_of_field[field];
    if (old_unit == new_unit) {
      *event++ = SymbolOf(tables, unit_class, 0);
      continue;
    }
    const Step step = StepBetween<Unit>(old_unit, new_unit, tables.rule.order);
    const Bucket bucket = BucketOf(step.magnitude);
    *event++ = SymbolOf(tables, unit_class, bucket.symbol + 1u);
    event = AppendRawBits((bucket.extra << 1) | (step.down ? 1 : 0), bucket.extra_bits + 1, event);
  }
  lane.event_count = static_cast<std::size_t>(event - lane.events.data());
}

void TileEncoder::EncodeSparse(std::span<const TileInput> tiles, int unit_bytes, const ExpandedTables& tables) {
  WW_CHECK(tiles.size() <= kLanes);
  WithUnit(unit_bytes, [&]<typename Unit>() {
    for (std::size_t k = 0; k < tiles.size(); ++k) {
      FindChanged<Unit>(tiles[k], lanes_[k]);
      lanes_[k].event_count = 0;  // a tile in which nothing changes takes no bytes
      if (lanes_[k].changed != 0) SparseEvents<Unit>(tiles[k], tables, lanes_[k]);
    }
  });
  PushEvents(tiles.size());
}

void TileEncoder::EncodeDense(std::span<const TileInput> tiles, int unit_bytes, const ExpandedTables& tables) {
  WW_CHECK(tiles.size() <= kLanes);
  WithUnit(unit_bytes, [&]<typename Unit>() {
    for (std::size_t k = 0; k < tiles.size(); ++k) {
      FindChanged<Unit>(tiles[k], lanes_[k]);
      DenseEvents<Unit>(tiles[k], tables, lanes_[k]);
    }
  });
  PushEvents(tiles.size());
}

void TileEncoder::Compare(std::span<const TileInput> tiles, int unit_bytes) {
  WW_CHECK(tiles.size() <= kLanes);
  WithUnit(unit_bytes, [&]<typename Unit>() {
    for (std::size_t k = 0; k < tiles.size(); ++k) FindChanged<Unit>(tiles[k], lanes_[k]);
  });
}

void TileEncoder::PushEvents(std::size_t lane_count) {
  // A few lanes side by side, in registers, hide the latency of the divisions. They go together as long as all have
  // events, then each to its end.
  constexpr std::size_t kTogether = 4;
  for (std::size_t first = 0; first < lane_count; first += kTogether) {
    const std::size_t count = std::min(kTogether, lane_count - first);
    std::array<RansEncoder, kTogether> coders;
    std::array<std::uint32_t*, kTogether> words{};
    std::array<const RansEvent*, kTogether> next{};
    std::size_t shared = count == kTogether ? lanes_[first].event_count : 0;
    for (std::size_t k = 0; k < count; ++k) {
      Lane& lane = lanes_[first + k];
      lane.words.resize(std::max(lane.words.size(), lane.event_count + 1));
      words[k] = lane.words.data();
      next[k] = lane.events.data() + lane.event_count;
      shared = std::min(shared, lane.event_count);
    }
    for (std::size_t i = 0; i < shared; ++i) {
      for (std::size_t k = 0; k < kTogether; ++k) coders[k].Push(*--next[k], words[k]);
    }
    for (std::size_t k = 0; k < count; ++k) {
      Lane& lane = lanes_[first + k];
      while (next[k] != lane.events.data()) coders[k].Push(*--next[k], words[k]);
      lane.stream.clear();
      if (lane.event_count != 0) coders[k].Finish({lane.words.data(), words[k]}, lane.stream);
    }
  }
}

bool DecodeDenseTile(std::span<const std::uint8_t> stream, const std::uint8_t* base_units, std::uint32_t count,
                     int unit_bytes, const ExpandedTables& tables, std::uint8_t* new_units) {
  RansDecoder coder(stream);
  return WithUnit(unit_bytes, [&]<typename Unit>() {
    for (std::uint32_t i = 0; i < count; ++i) {
      const Unit base = LoadUnit<Unit>(base_units, i);
      const std::uint32_t field = static_cast<std::uint32_t>(base >> tables.rule.shift) & tables.rule.FieldMask();
      const std::uint32_t unit_class = tables.class_of_field[field];
      if (((tables.usable_classes >> unit_class) & 1) == 0) return false;
      std::size_t at = unit_class * tables.stride;
      while (tables.lasts[at] < coder.Peek()) ++at;
      const SymbolSlot& slot = tables.slots[at];
      coder.Pop(slot.event);
      Unit unit = base;
      if (slot.symbol != 0) {
        const std::uint64_t raw = PopRawBits(coder, static_cast<int>(slot.extra_bits) + 1);
        unit = Stepped<Unit>(base, {(raw & 1) != 0, slot.least_magnitude + (raw >> 1)}, tables.rule.order);
      }
      StoreUnit<Unit>(new_units, i, unit);
    }
    return coder.Finished();
  });
}

}  // namespace weightwire
