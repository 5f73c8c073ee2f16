// Decoding of sparse tiles, one event after the other: the plain version, which the scalar kernels use for everything
// and the others for units of eight bytes (decode_sparse_lanes-inl.h is the fast one). Included inside a namespace of
// each instruction set; no include guard on purpose. The includer provides SumRates.

// A unit, and the times from the start of the wait between which it is passed.
struct Found {
  std::uint32_t index;
  std::uint32_t begin;
  std::uint32_t end;
};

// The wait for the next change of a tile.
struct Wait {
  std::uint64_t zero = 0;   // the time at which it began
  std::uint64_t total = 0;  // the time at the end of the tile
  std::uint32_t next = 0;   // the first unit not yet passed

  [[nodiscard]] std::uint32_t Limit() const {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(total - zero, kHorizon));
  }
};

template <typename Unit>
inline std::uint32_t RateAt(const SparseTile& tile, const ExpandedTables& tables, std::uint32_t index) {
  const auto field = static_cast<std::uint32_t>(LoadUnit<Unit>(tile.base, index) >> tables.rule.shift);
  return tables.rate_of_field[field & tables.rule.FieldMask()];
}

// The unit that is being passed at `time` after the start of the wait. REQUIRES: time < total - zero.
template <typename Unit>
Found FindUnit(const SparseTile& tile, const ExpandedTables& tables, const std::uint32_t* times, const Wait& wait,
               std::uint32_t time) {
  if (tables.uniform) {
    const std::uint32_t rate = tables.rates[0];
    const std::uint32_t skipped = time / rate;
    return {wait.next + skipped, skipped * rate, skipped * rate + rate};
  }
  // Times are kept modulo 2^32, but going forward block by block their differences cannot be mistaken.
  const auto zero = static_cast<std::uint32_t>(wait.zero);
  std::uint32_t block = wait.next / kTimeBlock;
  while (times[block + 1] - zero <= time) ++block;
  std::uint32_t index = std::max(wait.next, block * kTimeBlock);
  std::uint32_t begin = 0;
  if (index != wait.next) begin = times[block] - zero;
  for (;; ++index) {
    const std::uint32_t end = begin + RateAt<Unit>(tile, tables, index);
    if (end > time) return {index, begin, end};
    begin = end;
  }
}

// Pops survivals until a change is due: the guess at its time is in `time` then. False at the end of the tile.
template <typename Unit>
bool WaitForChange(RansDecoder& coder, const SparseTile& tile, const ExpandedTables& tables, const std::uint32_t* times,
                   Wait& wait, std::uint32_t& time) {
  for (;;) {
    const std::uint32_t position = FoldedPosition(coder.Peek());
    const std::uint32_t limit = wait.Limit();
    const std::uint32_t waiting = Waiting(limit);
    if (position >= waiting) {
      time = std::min(GuessTime(position), limit - 1);
      return true;
    }
    coder.Pop(SurvivalEvent(waiting));
    if (limit == wait.total - wait.zero) return false;
    const Found last = FindUnit<Unit>(tile, tables, times, wait, limit - 1);
    wait.next = last.index + 1;
    wait.zero += last.end;
  }
}

// The unit whose interval of the waiting holds the position, near the one at the guessed time.
template <typename Unit>
Found FindChange(const SparseTile& tile, const ExpandedTables& tables, const std::uint32_t* times, const Wait& wait,
                 std::uint32_t position, std::uint32_t time) {
  Found found = FindUnit<Unit>(tile, tables, times, wait, time);
  while (position >= Waiting(found.begin)) found = FindUnit<Unit>(tile, tables, times, wait, found.begin - 1);
  while (position < Waiting(std::min(found.end, kHorizon))) {
    found = FindUnit<Unit>(tile, tables, times, wait, found.end);
  }
  return found;
}

// A copy of the tile's units as its overlay shows them.
template <typename Unit>
std::unique_ptr<std::uint8_t[]> OverlaidTile(const SparseTile& tile) {
  const std::size_t bytes = std::size_t{tile.unit_count} * sizeof(Unit);
  auto copy = std::make_unique_for_overwrite<std::uint8_t[]>(bytes);
  std::memcpy(copy.get(), tile.base, bytes);
  Overlay<Unit>(tile.overlay, 0, tile.unit_count, copy.get());
  return copy;
}

template <typename Unit>
void DecodeTile(SparseTile& tile, const ExpandedTables& tables, std::uint32_t* times) {
  if (!tile.overlay.empty()) {
    const auto units = OverlaidTile<Unit>(tile);
    SparseTile seen = tile;
    seen.base = units.get();
    seen.overlay = {};
    DecodeTile<Unit>(seen, tables, times);
    tile.changed = seen.changed;
    tile.intact = seen.intact;
    return;
  }
  tile.changed = 0;
  tile.intact = tile.stream.empty();
  if (tile.stream.empty()) return;  // nothing changes in it
  RansDecoder coder(tile.stream);
  Wait wait;
  wait.total = tables.uniform ? std::uint64_t{tables.rates[0]} * tile.unit_count
                              : SumRates<Unit>(tile.base, tile.unit_count, tables, times);
  std::uint32_t time = 0;
  while (WaitForChange<Unit>(coder, tile, tables, times, wait, time)) {
    const std::uint32_t slot_position = coder.Peek();
    const bool down = slot_position >= kFold;
    const Found found = FindChange<Unit>(tile, tables, times, wait, FoldedPosition(slot_position), time);
    coder.Pop(ChangeEvent(Waiting(found.begin), Waiting(std::min(found.end, kHorizon)), down));
    wait.next = found.index + 1;
    wait.zero += found.end;

    const Unit old_unit = LoadUnit<Unit>(tile.base, found.index);
    const auto field = static_cast<std::uint32_t>(old_unit >> tables.rule.shift) & tables.rule.FieldMask();
    const std::uint32_t unit_class = tables.class_of_field[field];
    if (tile.changed == tile.max_changed || ((tables.usable_classes >> unit_class) & 1) == 0) return;  // damaged
    std::size_t at = unit_class * tables.stride;
    while (tables.lasts[at] < coder.Peek()) ++at;
    const SymbolSlot& slot = tables.slots[at];
    coder.Pop(slot.event);
    const std::uint64_t magnitude = slot.least_magnitude + PopRawBits(coder, static_cast<int>(slot.extra_bits));
    const Unit new_unit = Stepped<Unit>(old_unit, {down, magnitude}, tables.rule.order);
    StoreChange<Unit>(tile.changes, tile.changed, {found.index, old_unit, new_unit});
    ++tile.changed;
  }
  tile.intact = coder.Finished();
}
