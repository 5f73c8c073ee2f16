// Decoding of sparse tiles, compiled once per instruction set: included by kernels_simd.cc inside each target's
// namespace, and by kernels_scalar.cc. No include guard on purpose. The includer provides SumRates and
//   std::uint32_t FirstAbove(const std::uint32_t* times, std::uint32_t from, std::uint32_t zero, std::uint32_t time)
//     the first k >= from with times[k] - zero > time (modulo 2^32; one is known to exist);
//   std::uint32_t CountBelow(const std::uint32_t* lasts, std::uint32_t position)
//     how many of the ascending numbers are below the position (one is known not to be);
//   template <typename Unit> std::uint32_t PassedInBlock(const std::uint8_t* units, const ExpandedTables& tables,
//                                                        std::int32_t begin, std::int32_t time, std::int32_t* ends)
//     ends[0] = begin and ends[k + 1] = ends[k] + the rate of unit k for the eight units of a block; returns how many
//     of the first seven end at or before `time`.
//
// Speed comes from two things. Many tiles, one a lane, are decoded side by side, each phase of an event for all lanes
// before the next phase: the chain of dependent steps of one lane overlaps with the others'. And there are few branches
// on the data, because a misprediction would throw that work away.

// The state of one tile between two events.
struct Lane {
  SparseTile* tile = nullptr;
  RansDecoder coder;
  const std::uint32_t* times = nullptr;
  std::uint64_t zero = 0;   // the time at which the wait for the next change began
  std::uint64_t total = 0;  // the time at the end of the tile
  std::uint32_t next = 0;   // the first unit not yet passed
};

// A unit, and the times from the lane's zero between which it is passed.
struct Found {
  std::uint32_t index;
  std::uint32_t begin;
  std::uint32_t end;
};

// What the phases of one event hand on to each other.
struct Event {
  std::uint32_t position;  // in the waiting, 0 .. 2^31 - 1
  std::uint32_t time;
  std::uint32_t block;
  bool down;
  Found found;
};

template <typename Unit>
inline Found FindInBlock(const Lane& lane, const ExpandedTables& tables, std::uint32_t block, std::uint32_t time) {
  const SparseTile& tile = *lane.tile;
  const std::uint32_t first = block * kTimeBlock;
  const std::uint8_t* units = tile.base + std::size_t{first} * sizeof(Unit);
  // In the lane's first block some units lie before zero: times are signed here.
  const auto begin = static_cast<std::int32_t>(lane.times[block] - static_cast<std::uint32_t>(lane.zero));
  std::int32_t ends[kTimeBlock + 1];
  std::uint8_t padded[kTimeBlock * sizeof(Unit)];
  if (first + kTimeBlock > tile.unit_count) [[unlikely]] {
    std::memset(padded, 0, sizeof(padded));
    std::memcpy(padded, units, (tile.unit_count - first) * sizeof(Unit));
    units = padded;
  }
  const std::uint32_t passed = PassedInBlock<Unit>(units, tables, begin, static_cast<std::int32_t>(time), ends);
  return {first + passed, static_cast<std::uint32_t>(ends[passed]), static_cast<std::uint32_t>(ends[passed + 1])};
}

inline std::uint32_t FindBlock(const Lane& lane, std::uint32_t time) {
  return FirstAbove(lane.times, lane.next / kTimeBlock + 1, static_cast<std::uint32_t>(lane.zero), time) - 1;
}

inline Found FindUniform(const Lane& lane, const ExpandedTables& tables, std::uint32_t time) {
  const std::uint32_t rate = tables.rates[0];
  const std::uint32_t skipped = time / rate;
  return {lane.next + skipped, skipped * rate, skipped * rate + rate};
}

// The unit that is being passed at `time` after zero. REQUIRES: time < total - zero.
template <typename Unit, bool kUniform>
inline Found FindUnit(const Lane& lane, const ExpandedTables& tables, std::uint32_t time) {
  if constexpr (kUniform) {
    return FindUniform(lane, tables, time);
  } else {
    return FindInBlock<Unit>(lane, tables, FindBlock(lane, time), time);
  }
}

inline void GuessEvent(const Lane& lane, Event& event) {
  const std::uint32_t slot = lane.coder.Peek();
  event.down = slot >= kFold;
  event.position = event.down ? slot - kFold : kFold - 1 - slot;
  event.time = GuessTime(event.position | 1);
}

inline std::uint32_t LimitOf(const Lane& lane) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(lane.total - lane.zero, kHorizon));
}

// Close to the limit it must be asked exactly whether anything changes at all. Passes every survival; false when that
// was the end of the tile.
template <typename Unit, bool kUniform>
[[gnu::noinline]] bool Settle(Lane& lane, const ExpandedTables& tables, Event& event) {
  for (;;) {
    const std::uint32_t limit = LimitOf(lane);
    if (event.time + kGuessError < limit) return true;
    const std::uint32_t waiting = Waiting(limit);
    if (event.position >= waiting) {
      event.time = std::min(event.time, limit - 1);
      return true;
    }
    lane.coder.Pop(SurvivalEvent(waiting));
    if (limit == lane.total - lane.zero) {
      lane.tile->intact = lane.coder.Finished();
      return false;
    }
    const Found last = FindUnit<Unit, kUniform>(lane, tables, limit - 1);
    lane.next = last.index + 1;
    lane.zero += last.end;
    GuessEvent(lane, event);
  }
}

// Pops the change that was found.
template <typename Unit, bool kUniform>
inline void TakeChange(Lane& lane, const ExpandedTables& tables, Event& event) {
  Found& found = event.found;
  std::uint32_t above = Waiting(found.begin);
  std::uint32_t below = Waiting(std::min(found.end, kHorizon));
  // The guess may be off by a unit of time and have hit a neighbour.
  while (event.position >= above) [[unlikely]] {
      found = FindUnit<Unit, kUniform>(lane, tables, found.begin - 1);
      below = above;
      above = Waiting(found.begin);
    }
  while (event.position < below) [[unlikely]] {
      found = FindUnit<Unit, kUniform>(lane, tables, found.end);
      above = below;
      below = Waiting(std::min(found.end, kHorizon));
    }
  lane.coder.Pop(ChangeEvent(above, below, event.down));
  lane.next = found.index + 1;
  lane.zero += found.end;
}

// Pops the size of the change and writes it down; false when the stream is damaged.
template <typename Unit>
inline bool TakeStep(Lane& lane, const ExpandedTables& tables, const Event& event) {
  SparseTile& tile = *lane.tile;
  const Unit old_unit = LoadUnit<Unit>(tile.base, event.found.index);
  const std::uint32_t field = static_cast<std::uint32_t>(old_unit >> tables.rule.shift) & tables.rule.FieldMask();
  const std::uint32_t unit_class = tables.class_of_field[field];
  if (tile.changed == tile.max_changed || ((tables.usable_classes >> unit_class) & 1) == 0) [[unlikely]]
    return false;
  const std::size_t first = unit_class * tables.stride;
  const SymbolSlot& slot = tables.slots[first + CountBelow(tables.lasts.data() + first, lane.coder.Peek())];
  lane.coder.Pop(slot.event);
  std::uint64_t magnitude = slot.least_magnitude;
  if (slot.extra_bits != 0) [[unlikely]] {
    magnitude += PopRawBits(lane.coder, static_cast<int>(slot.extra_bits));
  }
  tile.positions[tile.changed] = event.found.index;
  StoreUnit<Unit>(tile.new_units, tile.changed, Stepped<Unit>(old_unit, {event.down, magnitude}, tables.rule.order));
  ++tile.changed;
  return true;
}

template <typename Unit, bool kUniform>
void DecodeTiles(std::span<SparseTile> tiles, const ExpandedTables& tables, std::uint32_t* times,
                 std::size_t times_stride) {
  std::array<Lane, kLanes> lanes;
  std::array<Event, kLanes> events;
  std::array<std::uint32_t*, kLanes> free_times;  // as many as there are idle lanes
  for (std::size_t l = 0; l < kLanes; ++l) free_times[l] = times + l * times_stride;
  std::size_t running = 0;
  std::size_t next_tile = 0;
  const auto start_lanes = [&] {
    while (running < kLanes && next_tile < tiles.size()) {
      SparseTile& tile = tiles[next_tile++];
      tile.changed = 0;
      tile.intact = tile.stream.empty();
      if (tile.stream.empty()) continue;  // nothing changes in it
      Lane& lane = lanes[running];
      std::uint32_t* lane_times = free_times[running++];
      lane = {&tile, RansDecoder(tile.stream), lane_times, 0, 0, 0};
      lane.total = kUniform ? std::uint64_t{tables.rates[0]} * tile.unit_count
                            : SumRates<Unit>(tile.base, tile.unit_count, tables, lane_times);
    }
  };
  const auto stop_lane = [&](std::size_t l) {
    --running;
    free_times[running] = const_cast<std::uint32_t*>(lanes[l].times);
    lanes[l] = lanes[running];
    events[l] = events[running];
  };
  for (;;) {
    start_lanes();
    if (running == 0) return;
    for (std::size_t l = 0; l < running; ++l) GuessEvent(lanes[l], events[l]);
    for (std::size_t l = 0; l < running;) {
      if (events[l].time + kGuessError >= LimitOf(lanes[l]) && !Settle<Unit, kUniform>(lanes[l], tables, events[l]))
          [[unlikely]] {
        stop_lane(l);
      } else {
        ++l;
      }
    }
    if constexpr (kUniform) {
      for (std::size_t l = 0; l < running; ++l) {
        events[l].found = FindUniform(lanes[l], tables, events[l].time);
        // The base is touched here and there only, which no hardware foresees.
        __builtin_prefetch(lanes[l].tile->base + std::size_t{events[l].found.index} * sizeof(Unit));
      }
    } else {
      for (std::size_t l = 0; l < running; ++l) events[l].block = FindBlock(lanes[l], events[l].time);
      for (std::size_t l = 0; l < running; ++l) {
        events[l].found = FindInBlock<Unit>(lanes[l], tables, events[l].block, events[l].time);
      }
    }
    for (std::size_t l = 0; l < running; ++l) TakeChange<Unit, kUniform>(lanes[l], tables, events[l]);
    for (std::size_t l = 0; l < running;) {
      if (!TakeStep<Unit>(lanes[l], tables, events[l])) [[unlikely]] {
        stop_lane(l);  // damaged; intact stays false
      } else {
        ++l;
      }
    }
  }
}

void DecodeSparse(std::span<SparseTile> tiles, int unit_bytes, const ExpandedTables& tables, std::uint32_t* times,
                  std::size_t times_stride) {
  WithUnit(unit_bytes, [&]<typename Unit>() {
    if (tables.uniform) {
      DecodeTiles<Unit, true>(tiles, tables, times, times_stride);
    } else {
      DecodeTiles<Unit, false>(tiles, tables, times, times_stride);
    }
  });
}
