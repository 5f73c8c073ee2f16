// Decoding of sparse tiles, fast: many tiles side by side, one a lane. Included by kernels_simd.cc inside each target's
// namespace; no include guard on purpose.
//
// Decoding a tile is one long chain of dependent steps. So a vector holds a tile in each of its lanes, and a few such
// groups take turns: each goes through a phase of an event before any goes on to the next phase, and what the lanes
// have to look up overlaps. There are hardly any branches on the data, because a misprediction would throw the
// overlapped work away. A lane whose tile is done goes through the motions without effect until it gets another.

template <typename Unit, bool kUniform>
class LaneDecoder {
 public:
  // Decodes those of the tiles whose rates are uniform, or are not.
  explicit LaneDecoder(std::span<SparseTile> tiles) {
    for (SparseTile& tile : tiles) {
      if (tile.tables->uniform != kUniform) continue;
      tile.changed = 0;
      tile.intact = tile.stream.empty();
      if (tile.stream.empty()) continue;  // nothing changes in it
      tiles_.push_back(&tile);
      if (!kUniform && !tile.overlay.empty() && overlaid_windows_ == nullptr) {
        overlaid_windows_ = std::make_unique_for_overwrite<std::uint8_t[]>(kLanes * kWindowBytes);
      }
    }
    for (Group& g : groups_) {
      g.running = 0;
      g.active = {};
      g.tail = {};
      g.queue = {};
      g.tables = nullptr;
      for (std::size_t l = 0; l < Group::kCount; ++l) SetIdle(g, l);
    }
  }

  void DecodeAll() {
    for (;;) {
      bool any = false;
      for (Group& g : groups_) {
        StartLanes(g);
        any = any || g.running != 0;
      }
      if (!any) return;
      for (std::uint32_t event = 0; event < kRound; ++event) {
        ForRunning([&](Group& g) HWY_ATTR { Guess(g, event); });
        ForRunning([&](Group& g) HWY_ATTR {
          if (event == 0 || FewWords(g)) LoadWords(g);
        });
        if constexpr (kUniform) {
          ForRunning([&](Group& g) HWY_ATTR { LoadOldUnits(g); });
        } else {
          ForRunning([&](Group& g) HWY_ATTR { FindCell(g); });
          ForRunning([&](Group& g) HWY_ATTR { FindBlock(g); });
          ForRunning([&](Group& g) HWY_ATTR { FindWithinBlock(g); });
        }
        ForRunning([&](Group& g) HWY_ATTR { PopChange(g); });
        ForRunning([&](Group& g) HWY_ATTR { PopSymbol(g, event); });
      }
      ForRunning([&](Group& g) HWY_ATTR { MoveOut(g); });
    }
  }

 private:
  using Group = LaneGroup<Unit>;
  // Enough that one group's waiting is another's work.
  static constexpr std::size_t kGroups = kLanes / Group::kCount;
  static constexpr bool kPacked = sizeof(Unit) <= 2;  // an old and a new unit in one number
  static constexpr std::uint32_t kAllLanes = (std::uint64_t{1} << Group::kCount) - 1;
  // Tiles that a group takes at once.
  static constexpr std::size_t kQueue = 2 * Group::kCount;
  static constexpr std::size_t kLineBytes = 64;
  static constexpr std::size_t kWindowBytes = kWindowUnits * sizeof(Unit);
  static constexpr std::size_t kRecordBytes = RecordBytes(sizeof(Unit));
  static_assert(!kPacked || kRecordBytes == 8);

  template <typename Phase>
  HWY_INLINE void ForRunning(const Phase& phase) {
    for (Group& g : groups_) {
      if (g.running != 0) phase(g);
    }
    // What was stored as a vector is to be loaded number by number, not taken apart in registers.
    asm volatile("" ::: "memory");
  }

  // --- tiles begin and end ---

  void StartLanes(Group& g) {
    if (g.running == kAllLanes) [[likely]]
      return;
    if (g.queue.empty()) TakeQueue(g);
    for (std::uint32_t idle = kAllLanes & ~g.running; idle != 0 && !g.queue.empty(); idle &= idle - 1) {
      StartLane(g, LowestBit(idle), *g.queue.front());
      g.queue = g.queue.subspan(1);
    }
  }

  // The next tiles with the same tables, the longest first: then the lanes end at about the same time.
  void TakeQueue(Group& g) {
    if (next_tile_ == tiles_.size()) return;
    const std::size_t first = next_tile_;
    if (g.running != 0 && g.tables != tiles_[first]->tables) return;
    g.tables = tiles_[first]->tables;
    while (next_tile_ < tiles_.size() && next_tile_ - first < kQueue && tiles_[next_tile_]->tables == g.tables) {
      ++next_tile_;
    }
    std::sort(tiles_.begin() + static_cast<std::ptrdiff_t>(first),
              tiles_.begin() + static_cast<std::ptrdiff_t>(next_tile_),
              [](const SparseTile* a, const SparseTile* b) { return a->stream.size() > b->stream.size(); });
    g.queue = std::span(tiles_).subspan(first, next_tile_ - first);
    g.rates.Set(*g.tables);
    g.symbol_ends.Set(*g.tables);
  }

  void StartLane(Group& g, std::size_t l, SparseTile& tile) {
    const RansDecoder coder(tile.stream);
    g.tile[l] = &tile;
    g.base[l] = tile.base;
    g.is_overlaid[l] = !kUniform && !tile.overlay.empty();
    g.words[l] = tile.stream.data();
    g.StoreCoder(coder, l);
    g.changes[l] = tile.changes;
    g.room[l] = tile.max_changed;
    g.active[l] = ~0u;
    g.running |= 1u << l;
    g.zero[l] = 0;
    for (const OverlaidUnits& list : tile.overlay) PrefetchChanges<Unit>(list, 0, 0);
    // Streams are short and many: no hardware foresees them.
    for (std::size_t at = 0; at < tile.stream.size(); at += kLineBytes) __builtin_prefetch(tile.stream.data() + at);
    if constexpr (kUniform) {
      // The base is looked at here and there only.
      const std::size_t base_bytes = std::size_t{tile.unit_count} * sizeof(Unit);
      if (tile.overlay.empty()) {
        for (std::size_t at = 0; at < base_bytes; at += kLineBytes) __builtin_prefetch(tile.base + at, 0, 2);
      } else {
        std::unique_ptr<std::uint8_t[]>& units = overlaid_tiles_[LaneOf(g, l)];
        units = OverlaidTile<Unit>(tile);
        g.base[l] = units.get();
      }
      g.next[l] = 0;
      g.unit_count[l] = tile.unit_count;
    } else {
      g.window[l].first_unit = g.window[l].unit_count = 0;
      NextWindow(g, l);
    }
  }

  [[gnu::noinline]] void NextWindow(Group& g, std::size_t l) {
    LaneWindow& window = g.window[l];
    const SparseTile& tile = *g.tile[l];
    const std::uint32_t first = window.first_unit + window.unit_count;
    const std::uint8_t* const base = tile.base + std::size_t{first} * sizeof(Unit);
    const std::uint8_t* const from = g.is_overlaid[l] ? OverlaidWindow(g, l, first) : base;
    constexpr bool kMayBeBf16 = kHasBf16Path && sizeof(Unit) == 2;
    const auto sum = [&]<bool kBf16Path>(std::bool_constant<kBf16Path>) HWY_ATTR {
      window.template Sum<Unit, kBf16Path>(from, base, first, tile.unit_count - first, g.rates, g.tables->rule,
                                           g.cell_lasts[0].data() + l);
    };
    if (kMayBeBf16 && IsBf16Rule(g.tables->rule)) {
      sum(std::bool_constant<kMayBeBf16>());
    } else {
      sum(std::false_type());
    }
    if (g.is_overlaid[l] && window.unit_count < kWindowUnits) StepBack(tile.overlay, first + window.unit_count);
    g.sum[l] = window.sum;
    g.first_unit[l] = first;
  }

  // Copies the units of the window that begins at `first`, with the overlay's instead of those in memory.
  const std::uint8_t* OverlaidWindow(const Group& g, std::size_t l, std::uint32_t first) {
    const SparseTile& tile = *g.tile[l];
    const std::uint8_t* const from = tile.base + std::size_t{first} * sizeof(Unit);
    const std::uint32_t count = std::min(kWindowUnits, tile.unit_count - first);
    std::uint8_t* const to = overlaid_windows_.get() + LaneOf(g, l) * kWindowBytes;
    std::memcpy(to, from, count * sizeof(Unit));
    Overlay<Unit>(tile.overlay, first, first + count, to);
    return to;
  }
  [[nodiscard]] std::size_t LaneOf(const Group& g, std::size_t l) const {
    return static_cast<std::size_t>(&g - groups_.data()) * Group::kCount + l;
  }

  void SetIdle(Group& g, std::size_t l) {
    g.running &= ~(1u << l);
    g.active[l] = 0;
    g.low[l] = kFold;
    g.high[l] = 0;
    g.words_left[l] = g.words_at_load[l] = 0;
    g.words[l] = reinterpret_cast<const std::uint8_t*>(g.tail[l].data() + kRowWords);
    g.room[l] = ~0u;
    g.zero[l] = g.next[l] = g.unit_count[l] = 0;
    g.window[l].SetIdle(g.cell_lasts[0].data() + l);
    g.sum[l] = g.window[l].sum;
    g.first_unit[l] = 0;
    g.tile[l] = &no_tile_;
    g.base[l] = no_tile_.base;
    g.is_overlaid[l] = false;
  }

  // The tile is at its end, after `events` events of this round.
  [[gnu::noinline]] void StopLane(Group& g, std::size_t l, bool intact, std::uint32_t events) {
    SparseTile& tile = *g.tile[l];
    tile.intact = intact;
    for (std::uint32_t e = 0; e < events; ++e) StoreEvent(g, l, e);
    tile.changed = static_cast<std::uint32_t>((g.changes[l] - tile.changes) / kRecordBytes) + events;
    SetIdle(g, l);
  }

  static void StoreEvent(const Group& g, std::size_t l, std::uint32_t e) {
    const std::uint32_t new_unit = kPacked ? g.old_of[e][l] >> 16 : g.new_of[e][l];
    StoreChange<Unit>(g.changes[l], e,
                      {g.index_of[e][l], static_cast<Unit>(g.old_of[e][l]), static_cast<Unit>(new_unit)});
  }

  // The changes of a round to where they belong.
  HWY_INLINE void MoveOut(Group& g) {
    const std::uint32_t running = g.running;
    if constexpr (kPacked) {
      // Row j has the four changes of lanes j, j + 4, j + 8, …: the first two of each, and the others.
      HWY_ALIGN std::array<std::array<std::array<std::uint32_t, Group::kCount>, 2>, kRound> rows;
      const auto transpose = [&](const std::array<typename Group::Numbers, kRound>& from) HWY_ATTR {
        return TransposeFour(hn::Load(kU32, from[0].data()), hn::Load(kU32, from[1].data()),
                             hn::Load(kU32, from[2].data()), hn::Load(kU32, from[3].data()));
      };
      const FourColumns indices = transpose(g.index_of);
      const FourColumns units = transpose(g.old_of);
      for (std::size_t j = 0; j < kRound; ++j) {
        hn::Store(hn::InterleaveLower(kU32, indices.column[j], units.column[j]), kU32, rows[j][0].data());
        hn::Store(hn::InterleaveUpper(kU32, indices.column[j], units.column[j]), kU32, rows[j][1].data());
      }
      for (std::size_t l = 0; l < Group::kCount; ++l) {
        if (running != kAllLanes && ((running >> l) & 1) == 0) continue;
        __builtin_prefetch(g.changes[l] + 2 * kLineBytes, 1);
        std::memcpy(g.changes[l], rows[l % kRound][0].data() + l / kRound * kRound, 16);
        std::memcpy(g.changes[l] + 16, rows[l % kRound][1].data() + l / kRound * kRound, 16);
        g.changes[l] += kRound * kRecordBytes;
      }
    } else {
      for (std::size_t l = 0; l < Group::kCount; ++l) {
        if (((running >> l) & 1) == 0) continue;
        for (std::uint32_t e = 0; e < kRound; ++e) StoreEvent(g, l, e);
        g.changes[l] += kRound * kRecordBytes;
      }
    }
    const auto left = hn::Load(kU32, g.words_left.data());
    const auto few = hn::Lt(left, hn::Set(kU32, kTailWords));
    for (std::uint64_t lanes = MaskBits(kU32, few) & running; lanes != 0; lanes &= lanes - 1) {
      g.MoveToTail(LowestBit(lanes));
    }
  }

  // --- the phases of an event ---

  // Where each lane's coder is, and a guess at the time.
  HWY_INLINE void Guess(Group& g, std::uint32_t event) {
    const hn::RebindToSigned<decltype(kU32)> ints;
    const auto low = hn::Load(kU32, g.low.data());
    const auto down = hn::Lt(hn::BitCast(ints, low), hn::Zero(ints));
    const auto fold = hn::Set(kU32, kFold);
    const auto position = hn::Xor(low, hn::IfThenElse(hn::RebindMask(kU32, down), fold, hn::Set(kU32, kFold - 1)));
    const auto time = hn::Min(GuessTimeOf(hn::Or(position, hn::Set(kU32, 1))), hn::Set(kU32, kHorizon - 1));
    hn::Store(position, kU32, g.position.data());
    const auto error = hn::Set(kU32, kLaneGuessError + 1);
    const auto far = hn::Gt(hn::BitCast(ints, hn::Add(time, error)), hn::Set(ints, std::int32_t{kHorizon}));
    if constexpr (kUniform) {
      const std::uint32_t rate = g.rates.rate[0];
      // Off by one once in a while, which Decode notices.
      const auto inverse = static_cast<std::uint32_t>(std::min<std::uint64_t>(kRansTotal / rate + 1, ~0u));
      const auto skipped = MultiplyShift<32>(time, hn::Set(kU32, inverse));
      const auto index = hn::Add(hn::Load(kU32, g.next.data()), skipped);
      // A guess at the last units may be one at the end of the tile: two more for the error, if rates are small.
      const auto after = hn::Add(index, hn::Set(kU32, kLaneGuessError + 2));
      const auto last = hn::Gt(hn::BitCast(ints, after), hn::BitCast(ints, hn::Load(kU32, g.unit_count.data())));
      hn::Store(index, kU32, g.index.data());
      hn::Store(hn::Mul(skipped, hn::Set(kU32, rate)), kU32, g.begin.data());
      HandleUnsure(g, MaskBits(ints, hn::Or(far, last)), event);
    } else {
      const auto target = hn::Add(hn::Load(kU32, g.zero.data()), time);
      const auto after =
          hn::Gt(hn::BitCast(ints, hn::Add(target, error)), hn::BitCast(ints, hn::Load(kU32, g.sum.data())));
      hn::Store(target, kU32, g.target.data());
      HandleUnsure(g, MaskBits(ints, hn::Or(far, after)), event);
    }
  }

  HWY_INLINE void HandleUnsure(Group& g, std::uint64_t unsure, std::uint32_t event) {
    for (unsure &= g.running; unsure != 0; unsure &= unsure - 1) {
      const std::size_t l = LowestBit(unsure);
      bool intact = false;
      const bool waits = kUniform ? FindNextChangeUniform(g, l, intact) : FindNextChange(g, l, intact);
      if (!waits) StopLane(g, l, intact, event);
    }
  }

  // Finds where a lane's next change is if the guess is near the end of the window or the horizon. Enters the next
  // window, or computes exactly. Returns false at the end of the tile.
  [[gnu::noinline]] bool FindNextChange(Group& g, std::size_t l, bool& intact) {
    const LaneWindow& window = g.window[l];
    constexpr auto kError = static_cast<std::int32_t>(kLaneGuessError + 1);
    auto zero = static_cast<std::int32_t>(g.zero[l]);
    auto target = static_cast<std::int32_t>(g.target[l]);
    for (;;) {
      const std::int32_t time = target - zero;
      bool at_end = window.first_unit + window.unit_count == g.tile[l]->unit_count;
      while (target + kError > static_cast<std::int32_t>(window.sum) && !at_end) {
        zero -= static_cast<std::int32_t>(window.sum);
        target -= static_cast<std::int32_t>(window.sum);
        NextWindow(g, l);
        at_end = window.first_unit + window.unit_count == g.tile[l]->unit_count;
      }
      if (target + kError <= static_cast<std::int32_t>(window.sum) && time + kError <= std::int32_t{kHorizon}) break;
      // If the window does not reach the tile's end it reaches beyond the horizon.
      const std::uint32_t rest = window.sum - static_cast<std::uint32_t>(zero);
      const std::uint32_t limit = std::min(rest, kHorizon);
      const std::uint32_t waiting = Waiting(limit);
      if (g.position[l] >= waiting) {
        target = zero + static_cast<std::int32_t>(std::min(GuessTime(g.position[l]), limit - 1));
        break;
      }
      RansDecoder coder = g.Coder(l);
      coder.Pop(SurvivalEvent(waiting));
      if (limit == rest) {
        intact = coder.Finished();
        return false;
      }
      g.StoreCoder(coder, l);
      zero = PassedAt(g, l, zero + static_cast<std::int32_t>(limit) - 1);
      g.position[l] = FoldedPosition(coder.Peek());
      target = zero + static_cast<std::int32_t>(std::min(GuessTime(g.position[l] | 1), kHorizon - 1));
    }
    g.zero[l] = static_cast<std::uint32_t>(zero);
    // The target may be a little before the window. The guess is then wrong, and CorrectGuess finds the unit.
    g.target[l] = static_cast<std::uint32_t>(std::max(target, 0));
    return true;
  }

  // When the unit that is being passed at `time` will have been passed.
  static std::int32_t PassedAt(const Group& g, std::size_t l, std::int32_t time) {
    const LaneWindow& window = g.window[l];
    std::uint32_t index = window.first_unit;
    std::int32_t end = 0;
    if (time < 0) {
      for (std::int32_t begin = 0; begin > time;) {
        end = begin;
        begin -= static_cast<std::int32_t>(g.RateOfUnit(l, --index));
      }
      return end;
    }
    const std::uint32_t* block = window.ends();
    while (*block <= static_cast<std::uint32_t>(time)) ++block;
    index += static_cast<std::uint32_t>(block - window.ends()) * kTimeBlock;
    for (end = static_cast<std::int32_t>(block[-1]); end <= time; ++index) {
      end += static_cast<std::int32_t>(g.RateOfUnit(l, index));
    }
    return end;
  }

  [[gnu::noinline]] bool FindNextChangeUniform(Group& g, std::size_t l, bool& intact) {
    const std::uint32_t rate = g.rates.rate[0];
    for (;;) {
      const std::uint64_t rest = std::uint64_t{rate} * (g.unit_count[l] - g.next[l]);
      const auto limit = static_cast<std::uint32_t>(std::min<std::uint64_t>(rest, kHorizon));
      const std::uint32_t waiting = Waiting(limit);
      if (g.position[l] >= waiting) {
        const std::uint32_t skipped = std::min(GuessTime(g.position[l]), limit - 1) / rate;
        g.index[l] = g.next[l] + skipped;
        g.begin[l] = skipped * rate;
        return true;
      }
      RansDecoder coder = g.Coder(l);
      coder.Pop(SurvivalEvent(waiting));
      if (limit == rest) {
        intact = coder.Finished();
        return false;
      }
      g.StoreCoder(coder, l);
      g.next[l] += (limit - 1) / rate + 1;
      g.position[l] = FoldedPosition(coder.Peek());
    }
  }

  // Whether a lane may take more words than are still loaded. Most events take none.
  HWY_INLINE bool FewWords(const Group& g) {
    const auto taken = hn::Sub(hn::Load(kU32, g.words_at_load.data()), hn::Load(kU32, g.words_left.data()));
    return !hn::AllFalse(kU32, hn::Gt(taken, hn::Set(kU32, kRowWords - kEventWords)));
  }

  // The next words of each lane's stream.
  HWY_INLINE void LoadWords(Group& g) {
    const hn::Full128<std::uint32_t> four;
    const hn::Full128<std::uint8_t> sixteen;
    const FourColumns words = LoadFour([&](std::size_t l) HWY_ATTR {
      const std::uint8_t* end = g.words[l] + 4 * std::size_t{g.words_left[l]};
      return hn::BitCast(four, hn::LoadU(sixteen, end - 4 * kRowWords));
    });
    for (std::size_t k = 0; k < kRowWords; ++k) {
      hn::Store(words.column[kRowWords - 1 - k], kU32, g.word[k].data());
    }
    hn::Store(hn::Load(kU32, g.words_left.data()), kU32, g.words_at_load.data());
  }

  // With uniform rates there is nothing to look up but the unit itself.
  HWY_INLINE void LoadOldUnits(Group& g) {
    for (std::size_t l = 0; l < Group::kCount; ++l) {
      // An index past the end was a wrong guess.
      const std::uint32_t index = std::min(g.index[l], g.tile[l]->unit_count - 1);
      g.unit[l] = LoadUnit<Unit>(g.base[l], index);
    }
  }

  // The cell, then the block, then the unit that is being passed at each lane's time.
  HWY_INLINE void FindCell(Group& g) {
    const hn::RebindToSigned<decltype(kU32)> ints;
    const auto target = hn::BitCast(ints, hn::Load(kU32, g.target.data()));
    auto cell = hn::Zero(kU32);
    for (std::size_t c = 0; c + 1 < kWindowCells; ++c) {
      const auto last = hn::BitCast(ints, hn::Load(kU32, g.cell_lasts[c].data()));
      const auto passed = hn::RebindMask(kU32, hn::Gt(target, last));
      cell = hn::IfThenElse(passed, hn::Add(cell, hn::Set(kU32, kCellBlocks)), cell);
    }
    hn::Store(cell, kU32, g.cell.data());
  }

  HWY_INLINE void FindBlock(Group& g) {
    const hn::RebindToSigned<decltype(kU32)> ints;
    const hn::Full128<std::uint32_t> four;
    const auto find_block = [&](std::size_t l) HWY_ATTR {
      const std::uint32_t* ends = g.window[l].ends() + g.cell[l];
      const auto wanted = hn::Set(ints, static_cast<std::int32_t>(g.target[l]));
      std::uint32_t ahead = 0;
      for (std::size_t k = 0; k < kCellBlocks; k += kLanesU32) {
        const auto later = hn::Gt(hn::BitCast(ints, hn::Load(kU32, ends + k)), wanted);
        ahead |= static_cast<std::uint32_t>(MaskBits(ints, later)) << k;
      }
      const auto within = static_cast<std::uint32_t>(__builtin_ctz(ahead));  // the last one of a cell is ahead always
      g.begin[l] = *(ends + within - 1);
      const std::uint32_t block = g.cell[l] + within;
      g.block[l] = block;
      return g.window[l].units + std::size_t{block} * (kTimeBlock * sizeof(Unit));
    };
    const FourColumns pairs = LoadFour(
        [&](std::size_t l) HWY_ATTR { return hn::BitCast(four, LoadBlock<Unit>(find_block(l), g.tables->rule)); });
    for (std::size_t k = 0; k < 4; ++k) hn::Store(pairs.column[k], kU32, g.pairs[k].data());
  }

  // Classes of units, two in each number.
  HWY_INLINE VecU32 ClassesOf(VecU32 units, const ClassRule& rule, int shift) {
    const hn::ScalableTag<std::uint16_t> u16;
    const auto fields =
        hn::And(hn::ShiftRightSame(hn::BitCast(u16, units), shift), hn::Set(u16, std::uint16_t{rule.FieldMask()}));
    const auto above = hn::SaturatedSub(fields, hn::Set(u16, std::uint16_t{rule.lowest}));
    return hn::BitCast(kU32, hn::Min(above, hn::Set(u16, std::uint16_t{kClassCount - 1})));
  }

  // The unit within the block that is being passed at each lane's time.
  HWY_INLINE void FindWithinBlock(Group& g) {
    const hn::RebindToSigned<decltype(kU32)> ints;
    const ClassRule& rule = g.tables->rule;
    const int shift = ColumnShift<Unit>(rule);
    const std::uint32_t* rate = g.rates.rate.data();
    const auto after = hn::BitCast(ints, hn::Add(hn::Load(kU32, g.target.data()), hn::Set(kU32, 1)));
    const VecU32 pair0 = hn::Load(kU32, g.pairs[0].data());
    const VecU32 pair1 = hn::Load(kU32, g.pairs[1].data());
    const VecU32 pair2 = hn::Load(kU32, g.pairs[2].data());
    const VecU32 pair3 = hn::Load(kU32, g.pairs[3].data());
    const VecU32 class0 = ClassesOf(pair0, rule, shift);
    const VecU32 class1 = ClassesOf(pair1, rule, shift);
    const VecU32 class2 = ClassesOf(pair2, rule, shift);
    const VecU32 class3 = ClassesOf(pair3, rule, shift);
    const VecU32 rate0 = LookUpSixteen(rate, class0);
    const VecU32 rate2 = LookUpSixteen(rate, class1);
    const VecU32 rate4 = LookUpSixteen(rate, class2);
    const VecU32 rate6 = LookUpSixteen(rate, class3);
    const VecU32 rates01 = hn::Add(rate0, LookUpSixteen(rate, hn::ShiftRight<16>(class0)));
    const VecU32 rates23 = hn::Add(rate2, LookUpSixteen(rate, hn::ShiftRight<16>(class1)));
    const VecU32 rates45 = hn::Add(rate4, LookUpSixteen(rate, hn::ShiftRight<16>(class2)));
    // Halve three times: has the first half been passed by then?
    VecU32 begin = hn::Load(kU32, g.begin.data());
    VecU32 index = hn::Add(hn::Load(kU32, g.first_unit.data()), hn::ShiftLeft<3>(hn::Load(kU32, g.block.data())));
    const auto halve = [&](VecU32 half, std::uint32_t units) HWY_ATTR {
      const auto middle = hn::Add(begin, half);
      const auto passed = hn::RebindMask(kU32, hn::Gt(after, hn::BitCast(ints, middle)));
      begin = hn::IfThenElse(passed, middle, begin);
      index = hn::IfThenElse(passed, hn::Add(index, hn::Set(kU32, units)), index);
      return passed;
    };
    const auto past4 = halve(hn::Add(rates01, rates23), 4);
    const auto past2 = halve(hn::IfThenElse(past4, rates45, rates01), 2);
    const VecU32 even_rate =
        hn::IfThenElse(past2, hn::IfThenElse(past4, rate6, rate2), hn::IfThenElse(past4, rate4, rate0));
    const auto past1 = halve(even_rate, 1);
    hn::Store(index, kU32, g.index.data());
    hn::Store(begin, kU32, g.begin.data());
    if constexpr (sizeof(Unit) <= 2) {
      const VecU32 pair =
          hn::IfThenElse(past2, hn::IfThenElse(past4, pair3, pair1), hn::IfThenElse(past4, pair2, pair0));
      const VecU32 unit = hn::And(hn::IfThenElse(past1, hn::ShiftRight<16>(pair), pair), hn::Set(kU32, 0xffff));
      hn::Store(unit, kU32, g.unit.data());
    } else {
      for (std::size_t l = 0; l < Group::kCount; ++l) {
        g.unit[l] = LoadUnit<Unit>(g.window[l].units, g.index[l] - g.first_unit[l]);
      }
    }
  }

  // Moves from the guessed unit to its neighbour that changes.
  [[gnu::noinline]] void CorrectGuess(Group& g, std::size_t l) {
    const std::uint32_t position = g.position[l];
    std::uint32_t index = g.index[l];
    std::uint32_t begin = g.begin[l] - g.zero[l];
    std::uint32_t end = begin + g.RateOfUnit(l, std::min(index, g.tile[l]->unit_count - 1));
    while (position >= Waiting(begin)) {
      end = begin;
      begin -= g.RateOfUnit(l, --index);
    }
    while (position < Waiting(std::min(end, kHorizon))) {
      begin = end;
      end += g.RateOfUnit(l, ++index);
    }
    g.index[l] = index;
    g.begin[l] = begin + g.zero[l];
    g.unit[l] = g.UnitAt(l, index);
  }

  // A class whose symbols are not in the lanes' tables, or a symbol beyond them.
  [[gnu::noinline]] void FindSymbol(Group& g, std::size_t l, std::uint32_t unit_class) {
    const ExpandedTables& tables = *g.tables;
    std::size_t at = unit_class * tables.stride;
    while (tables.lasts[at] < g.low[l]) ++at;
    const LaneSlot& slot = tables.lane_slots[at];
    g.width[l] = slot.width - 1;
    g.rest[l] = g.low[l] - slot.start;
    g.magnitude[l] = slot.least_magnitude;
    g.extra_bits[l] = slot.extra_bits;
  }

  // Pops the changes that were found.
  HWY_INLINE void PopChange(Group& g) {
    const hn::RebindToSigned<decltype(kU32)> ints;
    const ClassRule& rule = g.tables->rule;
    const VecU32 position = hn::Load(kU32, g.position.data());
    const VecU32 zero = kUniform ? hn::Zero(kU32) : hn::Load(kU32, g.zero.data());
    VecU32 unit_class;
    VecU32 end;
    VecU32 above;
    VecU32 below;
    for (;;) {
      const auto field =
          hn::And(hn::ShiftRightSame(hn::Load(kU32, g.unit.data()), rule.shift), hn::Set(kU32, rule.FieldMask()));
      const auto lowest = hn::Set(kU32, rule.lowest);
      unit_class = hn::Min(hn::Sub(hn::Max(field, lowest), lowest), hn::Set(kU32, kClassCount - 1));
      const VecU32 begin = hn::Sub(hn::Load(kU32, g.begin.data()), zero);
      end = hn::Add(begin, LookUpSixteen(g.rates.rate.data(), unit_class));
      above = WaitingOf(begin);
      below = WaitingOf(hn::Min(end, hn::Set(kU32, kHorizon)));
      const auto outside = hn::Or(hn::Not(hn::Lt(position, above)), hn::Lt(position, below));
      std::uint64_t wrong = MaskBits(kU32, outside) & g.running;
      if (wrong == 0) [[likely]]
        break;
      for (; wrong != 0; wrong &= wrong - 1) CorrectGuess(g, LowestBit(wrong));
    }
    LaneCoder coder(g);
    const auto down = hn::RebindMask(kU32, hn::Lt(hn::BitCast(ints, coder.low), hn::Zero(ints)));
    const auto one = hn::Set(kU32, 1);
    const auto rest = hn::IfThenElse(down, hn::Sub(position, below), hn::Sub(hn::Sub(above, one), position));
    coder.Pop(hn::Sub(above, below), rest);
    coder.Store(g);
    hn::Store(unit_class, kU32, g.unit_class.data());
    hn::Store(hn::VecFromMask(kU32, down), kU32, g.down.data());
    if constexpr (kUniform) {
      hn::Store(hn::Add(hn::Load(kU32, g.index.data()), one), kU32, g.next.data());
    } else {
      hn::Store(hn::And(hn::Add(end, zero), hn::Load(kU32, g.active.data())), kU32, g.zero.data());
    }
  }

  // Pops the symbols and extra bits, and takes the steps.
  HWY_INLINE void PopSymbol(Group& g, std::uint32_t event) {
    const hn::ScalableTag<std::int16_t> i16;
    const ExpandedTables& tables = *g.tables;
    const VecU32 unit_class = hn::Load(kU32, g.unit_class.data());
    const auto one = hn::Set(kU32, 1);
    LaneCoder coder(g);
    // The symbol. The ends of intervals are compared two at a time, in 16 bits: all are multiples of 2^16, and they are
    // kept less 2^15, for signed comparisons.
    const auto bias = hn::Set(kU32, 0x80008000);
    const auto high_half = hn::ShiftRight<16>(coder.low);
    const auto point = hn::BitCast(i16, hn::Xor(hn::Or(high_half, hn::ShiftLeft<16>(high_half)), bias));
    hn::Vec<decltype(i16)> ends[kLaneSymbols / 2];
    for (std::size_t k = 0; k < kLaneSymbols / 2; ++k) {
      ends[k] = hn::BitCast(i16, LookUpSixteen(g.symbol_ends.last[k].data(), unit_class));
    }
    auto passed = hn::Zero(i16);
    auto last_passed = hn::Set(i16, std::int16_t{-0x8000});
    auto last = hn::Set(i16, std::int16_t{0x7fff});
    for (std::size_t k = 0; k < kLaneSymbols / 2; ++k) {
      const auto after = hn::Gt(point, ends[k]);
      passed = hn::IfThenElse(after, hn::Add(passed, hn::Set(i16, std::int16_t{1})), passed);
      last_passed = hn::IfThenElse(after, ends[k], last_passed);
    }
    for (std::size_t k = kLaneSymbols / 2; k-- > 0;) last = hn::IfThenElse(hn::Gt(point, ends[k]), last, ends[k]);
    const auto both = [&](auto v) HWY_ATTR { return hn::BitCast(i16, hn::ShiftRight<16>(hn::BitCast(kU32, v))); };
    const auto low_half = hn::Set(kU32, 0xffff);
    const VecU32 symbol = hn::And(hn::BitCast(kU32, hn::Add(passed, both(passed))), low_half);
    last = hn::Min(last, both(last));
    last_passed = hn::Max(last_passed, both(last_passed));
    const auto first_symbol = hn::Eq(symbol, hn::Zero(kU32));
    const VecU32 sign = hn::Set(kU32, kFold);
    const auto to_words = [&](auto v) HWY_ATTR { return hn::Xor(hn::ShiftLeft<16>(hn::BitCast(kU32, v)), sign); };
    const VecU32 start = hn::IfThenZeroElse(first_symbol, hn::Add(to_words(last_passed), hn::Set(kU32, 0x10000)));
    VecU32 width = hn::Sub(hn::Or(to_words(last), low_half), start);  // less one
    VecU32 rest = hn::Sub(coder.low, start);
    VecU32 magnitude = LookUpSixteen(kSymbolTables.magnitude.data(), symbol);
    VecU32 extra_bits = LookUpSixteen(kSymbolTables.extra_bits.data(), symbol);
    const VecU32 room = hn::Load(kU32, g.room.data());
    const auto easy = hn::And(hn::Set(kU32, g.symbol_ends.easy_classes) >> unit_class, one);
    const auto hard = hn::Or(hn::Or(hn::Eq(easy, hn::Zero(kU32)), hn::Eq(room, hn::Zero(kU32))),
                             hn::Eq(symbol, hn::Set(kU32, kLaneSymbols)));
    std::uint64_t hard_lanes = MaskBits(kU32, hard) & g.running;
    std::uint32_t broken = 0;
    if (hard_lanes != 0) [[unlikely]] {
      hn::Store(width, kU32, g.width.data());
      hn::Store(rest, kU32, g.rest.data());
      hn::Store(magnitude, kU32, g.magnitude.data());
      hn::Store(extra_bits, kU32, g.extra_bits.data());
      for (; hard_lanes != 0; hard_lanes &= hard_lanes - 1) {
        const std::size_t l = LowestBit(hard_lanes);
        if (g.room[l] == 0 || ((tables.usable_classes >> g.unit_class[l]) & 1) == 0) {
          broken |= 1u << l;
        } else {
          FindSymbol(g, l, g.unit_class[l]);
        }
      }
      width = hn::Load(kU32, g.width.data());
      rest = hn::Load(kU32, g.rest.data());
      magnitude = hn::Load(kU32, g.magnitude.data());
      extra_bits = hn::Load(kU32, g.extra_bits.data());
    }
    coder.PopWide(width, rest);
    magnitude = hn::Add(magnitude, coder.PopBits(extra_bits));
    coder.Store(g);
    hn::Store(hn::Sub(room, one), kU32, g.room.data());

    // Stepped() of every lane.
    constexpr std::uint32_t kTop = 1u << (8 * sizeof(Unit) - 1);
    constexpr std::uint32_t kAll = kTop | (kTop - 1);
    const auto complement = hn::Set(kU32, tables.rule.order == Order::kSignMagnitude ? kTop - 1 : 0);
    const auto top = hn::Set(kU32, kTop);
    const auto swap = [&](VecU32 v) HWY_ATTR {
      return hn::Xor(v, hn::IfThenElseZero(hn::Ne(hn::And(v, top), hn::Zero(kU32)), complement));
    };
    const VecU32 unit = hn::Load(kU32, g.unit.data());
    const auto down = hn::MaskFromVec(hn::Load(kU32, g.down.data()));
    const VecU32 ordinal = swap(unit);
    const VecU32 stepped = hn::IfThenElse(down, hn::Sub(ordinal, magnitude), hn::Add(ordinal, magnitude));
    const VecU32 new_unit = swap(hn::And(stepped, hn::Set(kU32, kAll)));
    hn::Store(hn::Load(kU32, g.index.data()), kU32, g.index_of[event].data());
    if constexpr (kPacked) {
      hn::Store(hn::Or(unit, hn::ShiftLeft<16>(new_unit)), kU32, g.old_of[event].data());
    } else {
      hn::Store(unit, kU32, g.old_of[event].data());
      hn::Store(new_unit, kU32, g.new_of[event].data());
    }
    for (; broken != 0; broken &= broken - 1) StopLane(g, LowestBit(broken), false, 0);
  }

  std::vector<SparseTile*> tiles_;
  std::size_t next_tile_ = 0;
  std::array<Group, kGroups> groups_;
  // Copies for lanes whose tiles have overlays: of their windows, or with uniform rates of whole tiles.
  std::unique_ptr<std::uint8_t[]> overlaid_windows_;
  std::array<std::unique_ptr<std::uint8_t[]>, kLanes> overlaid_tiles_;
  // What an idle lane has.
  std::array<std::uint8_t, kTimeBlock * sizeof(Unit)> no_units_{};
  SparseTile no_tile_{.base = no_units_.data(), .unit_count = 1};
};

void DecodeSparse(std::span<SparseTile> tiles, int unit_bytes, std::uint32_t* times) {
  WithUnit(unit_bytes, [&]<typename Unit>() {
    if constexpr (sizeof(Unit) == 8) {
      // Does not fit the lanes' 32 bits, and is rare.
      for (SparseTile& tile : tiles) DecodeTile<Unit>(tile, *tile.tables, times);
    } else {
      LaneDecoder<Unit, true>(tiles).DecodeAll();
      LaneDecoder<Unit, false>(tiles).DecodeAll();
    }
  });
}
