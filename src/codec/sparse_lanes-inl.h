// Decoding of sparse tiles, fast: many tiles side by side, one a lane. Included by kernels_simd.cc inside each target's
// namespace; no include guard on purpose.
//
// Decoding a tile is one long chain of dependent steps. So all lanes go through each phase of an event before any goes
// on to the next phase: the arithmetic that is the same for all is done on vectors with a tile in each lane, and what
// each lane has to look up on its own overlaps with what the others look up. There are hardly any branches on the data,
// because a misprediction would throw the overlapped work away.

struct LaneState {
  // One number a lane, in arrays that are loaded as vectors. The coder's state is high * 2^32 + low.
  HWY_ALIGN std::array<std::uint32_t, kLanes> low;
  HWY_ALIGN std::array<std::uint32_t, kLanes> high;
  HWY_ALIGN std::array<std::uint32_t, kLanes> next_word;
  HWY_ALIGN std::array<std::uint32_t, kLanes> words_left;
  HWY_ALIGN std::array<std::uint32_t, kLanes> next;       // the first unit not yet passed
  HWY_ALIGN std::array<std::uint32_t, kLanes> zero;       // when the wait began, modulo 2^32 …
  HWY_ALIGN std::array<std::uint32_t, kLanes> zero_high;  // … and the rest of it
  HWY_ALIGN std::array<std::uint32_t, kLanes> total;      // the end of the tile, modulo 2^32
  HWY_ALIGN std::array<std::uint32_t, kLanes> changed;
  HWY_ALIGN std::array<std::uint32_t, kLanes> max_changed;
  // Of the event that is being decoded.
  HWY_ALIGN std::array<std::uint32_t, kLanes> position;
  HWY_ALIGN std::array<std::uint32_t, kLanes> time;  // the guess, from zero on or (once units are found) as it is
  HWY_ALIGN std::array<std::uint32_t, kLanes> block;
  HWY_ALIGN std::array<std::uint32_t, kLanes> index;
  HWY_ALIGN std::array<std::uint32_t, kLanes> begin;
  HWY_ALIGN std::array<std::uint32_t, kLanes> end;
  HWY_ALIGN std::array<std::uint32_t, kLanes> old_unit;
  HWY_ALIGN std::array<std::uint32_t, kLanes> new_unit;
  HWY_ALIGN std::array<std::uint32_t, kLanes> down;  // all ones or nothing
  HWY_ALIGN std::array<std::uint32_t, kLanes> unit_class;
  HWY_ALIGN std::array<std::uint32_t, kLanes> start;
  HWY_ALIGN std::array<std::uint32_t, kLanes> width;
  HWY_ALIGN std::array<std::uint32_t, kLanes> magnitude;
  HWY_ALIGN std::array<LaneSlot, kLanes> slot;
  // The rest is each lane's own.
  std::array<std::uint64_t, kLanes> total_exact;
  std::array<const std::uint8_t*, kLanes> words;
  std::array<std::uint32_t*, kLanes> times;
  std::array<const std::uint8_t*, kLanes> block_units;  // of the event's block
  std::array<std::uint32_t, kLanes> whole_blocks;
  std::array<std::array<std::uint8_t, kTimeBlock * 4>, kLanes> last_block;  // what is left of the tile, zeros after it
  std::array<const std::uint8_t*, kLanes> base;
  std::array<std::uint32_t*, kLanes> positions;
  std::array<std::uint8_t*, kLanes> new_units;
  std::array<std::uint8_t*, kLanes> old_units;
  std::array<SparseTile*, kLanes> tile;
};

// Even lanes and odd lanes as 64-bit numbers, and back.
HWY_INLINE auto OddWords(Words v) { return hn::BitCast(kWords, hn::ShiftRight<32>(hn::BitCast(kLongs, v))); }

// (a * b) >> bits, where the result fits 32 bits.
template <int kBits>
HWY_INLINE Words MultiplyShift(Words a, Words b) {
  const auto even = hn::ShiftRight<kBits>(hn::MulEven(a, b));
  const auto odd = hn::ShiftRight<kBits>(hn::MulEven(OddWords(a), OddWords(b)));
  return hn::OddEven(hn::BitCast(kWords, hn::ShiftLeft<32>(odd)), hn::BitCast(kWords, even));
}

// table[index] of every lane, for a table of eight numbers, given twice.
HWY_INLINE Words LookUpEight(const std::array<std::uint32_t, 16>& table, Words index) {
#if HWY_MAX_BYTES >= 32
  return hn::TableLookupLanes(hn::Load(kWords, table.data()), hn::IndicesFromVec(kWords, index));
#else
  HWY_ALIGN std::uint32_t lanes[kWordLanes];
  hn::Store(index, kWords, lanes);
  for (std::uint32_t& lane : lanes) lane = table[lane];
  return hn::Load(kWords, lanes);
#endif
}

struct LaneTables {
  HWY_ALIGN std::array<std::uint32_t, 16> knot;
  HWY_ALIGN std::array<std::uint32_t, 16> drop;
  HWY_ALIGN std::array<std::uint32_t, 16> inverse;
};
constexpr LaneTables MakeLaneTables() {
  LaneTables tables{};
  for (std::size_t k = 0; k < 16; ++k) {
    tables.knot[k] = waiting_internal::kKnots[k % 8];
    tables.drop[k] = waiting_internal::kPieces.drop[k % 8];
    tables.inverse[k] = waiting_internal::kPieces.inverse[k % 8];
  }
  return tables;
}
constexpr LaneTables kLaneTables = MakeLaneTables();

// Waiting() of every lane.
HWY_INLINE Words WaitingOf(Words t) {
  using waiting_internal::kPieceBits;
  const auto piece = hn::And(hn::ShiftRight<kPieceBits>(t), hn::Set(kWords, 7));
  const auto within = hn::And(t, hn::Set(kWords, waiting_internal::kPieceMask));
  const auto fall = MultiplyShift<kPieceBits>(LookUpEight(kLaneTables.drop, piece), within);
  return (LookUpEight(kLaneTables.knot, piece) - fall) >> hn::ShiftRight<kOctaveBits>(t);
}

// GuessTime() of every lane.
HWY_INLINE Words GuessTimeOf(Words v) {
  // The place of the highest bit is the exponent of a float; the bit below it is cleared so that nothing rounds up.
  const hn::RebindToSigned<decltype(kWords)> ints;
  const hn::RebindToFloat<decltype(kWords)> floats;
  const auto high_bit = hn::BitCast(ints, hn::AndNot(hn::ShiftRight<1>(v), v));
  const auto exponent = hn::ShiftRight<23>(hn::BitCast(kWords, hn::ConvertTo(floats, high_bit)));
  const auto octave = hn::Sub(hn::Set(kWords, 127 + 30), exponent);
  const auto scaled = v << octave;
  const auto one = hn::Set(kWords, 1);
  Words piece = hn::Zero(kWords);
  for (std::size_t j = 1; j < 8; ++j) {
    piece = hn::Add(piece, hn::IfThenElseZero(hn::Lt(scaled, hn::Set(kWords, waiting_internal::kKnots[j])), one));
  }
  const auto fallen = hn::Sub(LookUpEight(kLaneTables.knot, piece), scaled);
  const auto within = MultiplyShift<32>(fallen, LookUpEight(kLaneTables.inverse, piece));
  return hn::Add(within,
                 hn::Add(hn::ShiftLeft<kOctaveBits>(octave), hn::ShiftLeft<waiting_internal::kPieceBits>(piece)));
}

// RansDecoder::Pop for the lanes from `l` on.
HWY_INLINE void PopLanes(LaneState& s, std::size_t l, Words start, Words width) {
  const auto low = hn::Load(kWords, s.low.data() + l);
  const auto high = hn::Load(kWords, s.high.data() + l);
  const auto rest = hn::Sub(low, start);
  const auto mask = hn::Set(kLongs, 0xffffffff);
  const auto even = hn::Add(hn::MulEven(width, high), hn::And(hn::BitCast(kLongs, rest), mask));
  const auto odd = hn::Add(hn::MulEven(OddWords(width), OddWords(high)), hn::ShiftRight<32>(hn::BitCast(kLongs, rest)));
  auto new_low = hn::OddEven(hn::BitCast(kWords, hn::ShiftLeft<32>(odd)), hn::BitCast(kWords, even));
  auto new_high = hn::OddEven(hn::BitCast(kWords, odd), hn::BitCast(kWords, hn::ShiftRight<32>(even)));
  // A width of 0 means certainty, which changes nothing.
  const auto certain = hn::Eq(width, hn::Zero(kWords));
  new_low = hn::IfThenElse(certain, low, new_low);
  new_high = hn::IfThenElse(certain, high, new_high);
  const auto words_left = hn::Load(kWords, s.words_left.data() + l);
  const auto due = hn::And(hn::Eq(new_high, hn::Zero(kWords)), hn::Ne(words_left, hn::Zero(kWords)));
  hn::Store(hn::IfThenElse(due, hn::Load(kWords, s.next_word.data() + l), new_low), kWords, s.low.data() + l);
  hn::Store(hn::IfThenElse(due, new_low, new_high), kWords, s.high.data() + l);
  hn::Store(hn::Sub(words_left, hn::IfThenElseZero(due, hn::Set(kWords, 1))), kWords, s.words_left.data() + l);
  for (std::uint64_t bits = MaskBits(kWords, due); bits != 0; bits &= bits - 1) {
    const std::size_t lane = l + LowestBit(bits);
    const std::uint32_t left = s.words_left[lane];
    if (left != 0) s.next_word[lane] = LoadU32(s.words[lane] + 4 * (std::size_t{left} - 1));
  }
}

// --- one lane on its own, for what is rare ---

RansDecoder CoderOf(const LaneState& s, std::size_t l) {
  return RansDecoder::Resume((std::uint64_t{s.high[l]} << 32) | s.low[l], s.words[l], s.words_left[l]);
}

void StoreCoder(const RansDecoder& coder, LaneState& s, std::size_t l) {
  s.low[l] = static_cast<std::uint32_t>(coder.state());
  s.high[l] = static_cast<std::uint32_t>(coder.state() >> 32);
  s.words_left[l] = static_cast<std::uint32_t>(coder.words_left());
  if (s.words_left[l] != 0) s.next_word[l] = LoadU32(s.words[l] + 4 * (coder.words_left() - 1));
}

Wait WaitOf(const LaneState& s, std::size_t l) {
  return {(std::uint64_t{s.zero_high[l]} << 32) | s.zero[l], s.total_exact[l], s.next[l]};
}

// The guess is close to the limit of what can be seen: asks exactly. False at the end of the tile.
template <typename Unit>
[[gnu::noinline]] bool SettleLane(LaneState& s, std::size_t l, const ExpandedTables& tables) {
  RansDecoder coder = CoderOf(s, l);
  Wait wait = WaitOf(s, l);
  const bool waits = WaitForChange<Unit>(coder, *s.tile[l], tables, s.times[l], wait, s.time[l]);
  if (!waits) {
    s.tile[l]->intact = coder.Finished();
    return false;
  }
  StoreCoder(coder, s, l);
  s.zero[l] = static_cast<std::uint32_t>(wait.zero);
  s.zero_high[l] = static_cast<std::uint32_t>(wait.zero >> 32);
  s.next[l] = wait.next;
  s.position[l] = FoldedPosition(coder.Peek());
  s.down[l] = coder.Peek() >= kFold ? ~0u : 0;
  return true;
}

// The guess fell on a neighbour.
template <typename Unit>
[[gnu::noinline]] void MendLane(LaneState& s, std::size_t l, const ExpandedTables& tables) {
  const Wait wait = WaitOf(s, l);
  const std::uint32_t time = std::min(GuessTime(s.position[l]), wait.Limit() - 1);
  const Found found = FindChange<Unit>(*s.tile[l], tables, s.times[l], wait, s.position[l], time);
  s.index[l] = found.index;
  s.begin[l] = found.begin;
  s.end[l] = found.end;
  s.old_unit[l] = LoadUnit<Unit>(s.base[l], found.index);
}

[[gnu::noinline]] void PopExtraBits(LaneState& s, std::size_t l) {
  RansDecoder coder = CoderOf(s, l);
  s.magnitude[l] += static_cast<std::uint32_t>(PopRawBits(coder, static_cast<int>(s.slot[l].extra_bits)));
  StoreCoder(coder, s, l);
}

// --- the phases of an event, for all lanes ---

// Where each lane's coder is, and a guess at the time. Returns the lanes that must ask exactly, a bit each.
HWY_INLINE std::uint64_t GuessLanes(LaneState& s, std::size_t running) {
  std::uint64_t unsure = 0;
  for (std::size_t l = 0; l < running; l += kWordLanes) {
    const auto low = hn::Load(kWords, s.low.data() + l);
    const auto down = hn::Gt(low, hn::Set(kWords, kFold - 1));
    const auto position = hn::Xor(low, hn::IfThenElse(down, hn::Set(kWords, kFold), hn::Set(kWords, kFold - 1)));
    const auto time = GuessTimeOf(hn::Or(position, hn::Set(kWords, 1)));
    // Modulo 2^32 the rest of the tile may look shorter than it is: then asking was not needed, and does no harm.
    const auto rest = hn::Sub(hn::Load(kWords, s.total.data() + l), hn::Load(kWords, s.zero.data() + l));
    const auto limit = hn::Min(rest, hn::Set(kWords, kHorizon));
    unsure |= MaskBits(kWords, hn::Gt(hn::Add(time, hn::Set(kWords, kGuessError + 1)), limit)) << l;
    hn::Store(position, kWords, s.position.data() + l);
    hn::Store(time, kWords, s.time.data() + l);
    hn::Store(hn::IfThenElseZero(down, hn::Set(kWords, ~0u)), kWords, s.down.data() + l);
  }
  return unsure;
}

// Pops the changes that were found. Returns the lanes whose guess fell on a neighbour, and pops nothing, if there are
// any.
HWY_INLINE std::uint64_t PopChanges(LaneState& s, std::size_t running) {
  std::uint64_t wrong = 0;
  for (std::size_t l = 0; l < running; l += kWordLanes) {
    const auto begin = hn::Load(kWords, s.begin.data() + l);
    const auto end = hn::Load(kWords, s.end.data() + l);
    const auto position = hn::Load(kWords, s.position.data() + l);
    const auto above = WaitingOf(begin);
    const auto below = WaitingOf(hn::Min(end, hn::Set(kWords, kHorizon)));
    wrong |= MaskBits(kWords, hn::Or(hn::Not(hn::Lt(position, above)), hn::Lt(position, below))) << l;
    const auto down = hn::MaskFromVec(hn::Load(kWords, s.down.data() + l));
    const auto fold = hn::Set(kWords, kFold);
    hn::Store(hn::IfThenElse(down, hn::Add(fold, below), hn::Sub(fold, above)), kWords, s.start.data() + l);
    hn::Store(hn::Sub(above, below), kWords, s.width.data() + l);
  }
  if (wrong != 0) return wrong;
  for (std::size_t l = 0; l < running; l += kWordLanes) {
    PopLanes(s, l, hn::Load(kWords, s.start.data() + l), hn::Load(kWords, s.width.data() + l));
    const auto zero = hn::Load(kWords, s.zero.data() + l);
    const auto new_zero = hn::Add(zero, hn::Load(kWords, s.end.data() + l));
    const auto carry = hn::IfThenElseZero(hn::Lt(new_zero, zero), hn::Set(kWords, 1));
    hn::Store(new_zero, kWords, s.zero.data() + l);
    hn::Store(hn::Add(hn::Load(kWords, s.zero_high.data() + l), carry), kWords, s.zero_high.data() + l);
    hn::Store(hn::Add(hn::Load(kWords, s.index.data() + l), hn::Set(kWords, 1)), kWords, s.next.data() + l);
  }
  return 0;
}

// Classes of the old units; a bit for each lane whose class has no symbols, or whose tile has no room.
HWY_INLINE std::uint64_t ClassifyLanes(LaneState& s, std::size_t running, const ExpandedTables& tables) {
  std::uint64_t broken = 0;
  for (std::size_t l = 0; l < running; l += kWordLanes) {
    const auto lowest = hn::Set(kWords, tables.rule.lowest);
    auto field = hn::ShiftRightSame(hn::Load(kWords, s.old_unit.data() + l), tables.rule.shift);
    field = hn::And(field, hn::Set(kWords, tables.rule.FieldMask()));
    const auto unit_class = hn::Min(hn::Sub(hn::Max(field, lowest), lowest), hn::Set(kWords, kClassCount - 1));
    const auto usable = hn::And(hn::Set(kWords, tables.usable_classes) >> unit_class, hn::Set(kWords, 1));
    const auto full = hn::Eq(hn::Load(kWords, s.changed.data() + l), hn::Load(kWords, s.max_changed.data() + l));
    broken |= MaskBits(kWords, hn::Or(hn::Eq(usable, hn::Zero(kWords)), full)) << l;
    hn::Store(unit_class, kWords, s.unit_class.data() + l);
  }
  return broken;
}

// The unit of each lane that is being passed at its time, and its old bits. Lanes from `running` on keep what they
// have.
template <typename Unit>
HWY_INLINE void FindUnits(LaneState& s, std::size_t running, const ExpandedTables& tables) {
  const hn::ScalableTag<std::int32_t> ints;
  const int shift = ColumnShift<Unit>(tables.rule);
  for (std::size_t l = 0; l < running; l += kWordLanes) {
    const auto target = hn::Add(hn::Load(kWords, s.zero.data() + l), hn::Load(kWords, s.time.data() + l));
    hn::Store(target, kWords, s.time.data() + l);
    const auto from = hn::Add(hn::ShiftRight<3>(hn::Load(kWords, s.next.data() + l)), hn::Set(kWords, 1));
    hn::Store(from, kWords, s.block.data() + l);
  }
  for (std::size_t l = 0; l < running; ++l) {
    const std::uint32_t block = FirstAfter(s.times[l], s.block[l], s.time[l]) - 1;
    s.block[l] = block;
    s.begin[l] = s.times[l][block];
    const std::uint8_t* whole = s.base[l] + std::size_t{block} * (kTimeBlock * sizeof(Unit));
    s.block_units[l] = block < s.whole_blocks[l] ? whole : s.last_block[l].data();
  }
  // An idle lane looks at the block of one that is not.
  for (std::size_t l = running; l < kLanes; ++l) s.block_units[l] = s.block_units[0];
  for (std::size_t l = 0; l < running; l += kWordLanes) {
    const RateColumns rates = TransposeRates(
        [&](std::size_t k) { return LoadBlock<Unit>(s.block_units[l + k], tables.rule); }, shift, tables);
    const auto target = hn::Load(kWords, s.time.data() + l);
    auto begin = hn::Load(kWords, s.begin.data() + l);
    auto end = hn::Add(begin, rates.column[0]);
    auto index = hn::ShiftLeft<3>(hn::Load(kWords, s.block.data() + l));
    for (std::size_t k = 1; k < kTimeBlock; ++k) {
      // Has the unit before been passed by then?
      const auto passed =
          hn::RebindMask(kWords, hn::Not(hn::Gt(hn::BitCast(ints, hn::Sub(end, target)), hn::Zero(ints))));
      begin = hn::IfThenElse(passed, end, begin);
      end = hn::Add(end, hn::IfThenElseZero(passed, rates.column[k]));
      index = hn::Add(index, hn::IfThenElseZero(passed, hn::Set(kWords, 1)));
    }
    const auto zero = hn::Load(kWords, s.zero.data() + l);
    hn::Store(hn::Sub(begin, zero), kWords, s.begin.data() + l);
    hn::Store(hn::Sub(end, zero), kWords, s.end.data() + l);
    hn::Store(index, kWords, s.index.data() + l);
  }
  for (std::size_t l = 0; l < running; ++l) s.old_unit[l] = LoadUnit<Unit>(s.base[l], s.index[l]);
}

HWY_INLINE void FindSymbol(LaneState& s, std::size_t l, const ExpandedTables& tables) {
  const std::size_t first = s.unit_class[l] * tables.stride;
  const std::size_t slot = first + CountBelow(tables.lasts.data() + first, s.low[l]);
  static_assert(sizeof(LaneSlot) == 16);
  std::memcpy(&s.slot[l], &tables.lane_slots[slot], sizeof(LaneSlot));
}

// The parts of four slots, a slot in each lane of a block: from rows to columns.
struct SlotColumns {
  Words start;
  Words width;
  Words magnitude;
  Words extra_bits;
};

HWY_INLINE SlotColumns TransposeSlots(const LaneSlot* slots) {
  // Row r holds the slots of lanes r, r + 4, r + 8, …, as TransposeRates has its rows.
  const hn::Full128<std::uint32_t> quarter;
  const auto load = [&](std::size_t l) { return hn::Load(quarter, reinterpret_cast<const std::uint32_t*>(slots + l)); };
  const auto row = [&](std::size_t r) -> Words {
#if HWY_MAX_BYTES >= 64
    const hn::Full256<std::uint32_t> half;
    return hn::Combine(kWords, hn::Combine(half, load(r + 12), load(r + 8)), hn::Combine(half, load(r + 4), load(r)));
#elif HWY_MAX_BYTES >= 32
    return hn::Combine(kWords, load(r + 4), load(r));
#else
    return load(r);
#endif
  };
  const auto low01 = hn::BitCast(kLongs, hn::InterleaveLower(kWords, row(0), row(1)));
  const auto low23 = hn::BitCast(kLongs, hn::InterleaveLower(kWords, row(2), row(3)));
  const auto high01 = hn::BitCast(kLongs, hn::InterleaveUpper(kWords, row(0), row(1)));
  const auto high23 = hn::BitCast(kLongs, hn::InterleaveUpper(kWords, row(2), row(3)));
  return {hn::BitCast(kWords, hn::InterleaveLower(kLongs, low01, low23)),
          hn::BitCast(kWords, hn::InterleaveUpper(kLongs, low01, low23)),
          hn::BitCast(kWords, hn::InterleaveLower(kLongs, high01, high23)),
          hn::BitCast(kWords, hn::InterleaveUpper(kLongs, high01, high23))};
}

// Pops the symbols that were found, and takes the steps.
template <typename Unit>
HWY_INLINE void StepLanes(LaneState& s, std::size_t running, const ExpandedTables& tables) {
  std::uint64_t extra = 0;
  for (std::size_t l = 0; l < running; l += kWordLanes) {
    const SlotColumns slots = TransposeSlots(s.slot.data() + l);
    PopLanes(s, l, slots.start, slots.width);
    hn::Store(slots.magnitude, kWords, s.magnitude.data() + l);
    extra |= MaskBits(kWords, hn::Ne(slots.extra_bits, hn::Zero(kWords))) << l;
  }
  for (; extra != 0; extra &= extra - 1) PopExtraBits(s, LowestBit(extra));
  constexpr std::uint32_t kTop = 1u << (8 * sizeof(Unit) - 1);
  constexpr std::uint32_t kAll = kTop | (kTop - 1);
  const auto rest = hn::Set(kWords, tables.rule.order == Order::kSignMagnitude ? kTop - 1 : 0);
  const auto top = hn::Set(kWords, kTop);
  // Stepped() of every lane.
  const auto swap = [&](Words v) {
    return hn::Xor(v, hn::IfThenElseZero(hn::Ne(hn::And(v, top), hn::Zero(kWords)), rest));
  };
  for (std::size_t l = 0; l < running; l += kWordLanes) {
    const auto ordered = swap(hn::Load(kWords, s.old_unit.data() + l));
    const auto magnitude = hn::Load(kWords, s.magnitude.data() + l);
    const auto down = hn::MaskFromVec(hn::Load(kWords, s.down.data() + l));
    const auto stepped = hn::IfThenElse(down, hn::Sub(ordered, magnitude), hn::Add(ordered, magnitude));
    hn::Store(swap(hn::And(stepped, hn::Set(kWords, kAll))), kWords, s.new_unit.data() + l);
  }
}

template <typename Unit, bool kUniform>
class LaneDecoder {
 public:
  LaneDecoder(std::span<SparseTile> tiles, const ExpandedTables& tables, std::uint32_t* times, std::size_t times_stride)
      : tiles_(tiles), tables_(tables) {
    s_ = {};
    for (std::size_t l = 0; l < kLanes; ++l) s_.times[l] = times + l * times_stride;
  }

  void Run() {
    for (;;) {
      StartLanes();
      if (running_ == 0) return;
      Event();
    }
  }

 private:
  // Lanes [0, running_) have a tile each; the others go through the same motions without effect.
  void StartLanes() {
    while (running_ < kLanes && next_tile_ < tiles_.size()) {
      SparseTile& tile = tiles_[next_tile_++];
      tile.changed = 0;
      tile.intact = tile.stream.empty();
      if (tile.stream.empty()) continue;  // nothing changes in it
      const std::size_t l = running_++;
      const RansDecoder coder(tile.stream);
      s_.tile[l] = &tile;
      s_.words[l] = tile.stream.data();
      StoreCoder(coder, s_, l);
      s_.base[l] = tile.base;
      s_.whole_blocks[l] = tile.unit_count / kTimeBlock;
      const std::size_t whole_bytes = std::size_t{s_.whole_blocks[l]} * kTimeBlock * sizeof(Unit);
      s_.last_block[l].fill(0);
      std::memcpy(s_.last_block[l].data(), tile.base + whole_bytes, tile.unit_count * sizeof(Unit) - whole_bytes);
      s_.positions[l] = tile.positions;
      s_.new_units[l] = tile.new_units;
      s_.old_units[l] = tile.old_units;
      s_.changed[l] = 0;
      s_.max_changed[l] = tile.max_changed;
      s_.next[l] = s_.zero[l] = s_.zero_high[l] = 0;
      // Streams are short and many, and the base is looked at here and there only: no hardware foresees either. The
      // rates of a conditioned tile have been summed up, which has brought its base near.
      for (std::size_t at = 0; at < tile.stream.size(); at += kLineBytes) __builtin_prefetch(tile.stream.data() + at);
      if constexpr (kUniform) {
        const std::size_t base_bytes = std::size_t{tile.unit_count} * sizeof(Unit);
        for (std::size_t at = 0; at < base_bytes; at += kLineBytes) __builtin_prefetch(tile.base + at, 0, 2);
      }
      s_.total_exact[l] = kUniform ? std::uint64_t{tables_.rates[0]} * tile.unit_count
                                   : SumRates<Unit>(tile.base, tile.unit_count, tables_, s_.times[l]);
      s_.total[l] = static_cast<std::uint32_t>(s_.total_exact[l]);
    }
  }

  // The last running lane takes this one's place.
  void StopLane(std::size_t l) {
    s_.tile[l]->changed = s_.changed[l];
    const std::size_t last = --running_;
    const auto move = [&](auto& array) { std::swap(array[l], array[last]); };
    move(s_.low), move(s_.high), move(s_.next_word), move(s_.words_left), move(s_.next), move(s_.zero);
    move(s_.zero_high), move(s_.total), move(s_.changed), move(s_.max_changed), move(s_.position), move(s_.time);
    move(s_.index), move(s_.begin), move(s_.end), move(s_.old_unit), move(s_.down), move(s_.total_exact);
    move(s_.unit_class), move(s_.words), move(s_.times), move(s_.base), move(s_.whole_blocks), move(s_.last_block),
        move(s_.positions), move(s_.new_units), move(s_.old_units);
    move(s_.tile);
    // An idle lane neither reads words nor pops extra bits.
    s_.words_left[last] = 0;
    s_.slot[last] = {};
  }

  void Event() {
    const std::uint64_t unsure = GuessLanes(s_, running_) & Running();
    // From the last: a lane that takes another's place has been asked already.
    for (std::size_t l = kLanes; unsure != 0 && l-- > 0;) {
      if (((unsure >> l) & 1) != 0 && !SettleLane<Unit>(s_, l, tables_)) StopLane(l);
    }
    if constexpr (kUniform) {
      FindUniformUnits();
    } else {
      if (running_ != 0) FindUnits<Unit>(s_, running_, tables_);
    }
    for (std::size_t l = running_; l < kLanes; ++l) {
      s_.begin[l] = 0;
      s_.end[l] = 1;
      s_.position[l] = kFold - 1;
    }
    while (std::uint64_t wrong = PopChanges(s_, running_)) {
      for (; wrong != 0; wrong &= wrong - 1) MendLane<Unit>(s_, LowestBit(wrong), tables_);
    }
    const std::uint64_t broken = ClassifyLanes(s_, running_, tables_) & Running();
    for (std::size_t l = kLanes; broken != 0 && l-- > 0;) {
      if (((broken >> l) & 1) != 0) StopLane(l);  // damaged; intact stays false
    }
    for (std::size_t l = 0; l < running_; ++l) FindSymbol(s_, l, tables_);
    StepLanes<Unit>(s_, running_, tables_);
    for (std::size_t l = 0; l < running_; ++l) {
      const std::uint32_t k = s_.changed[l]++;
      s_.positions[l][k] = s_.index[l];
      StoreUnit<Unit>(s_.new_units[l], k, static_cast<Unit>(s_.new_unit[l]));
      StoreUnit<Unit>(s_.old_units[l], k, static_cast<Unit>(s_.old_unit[l]));
    }
  }

  [[nodiscard]] std::uint64_t Running() const { return (std::uint64_t{1} << running_) - 1; }

  // Where every unit has the same rate there is nothing to look up but the unit itself.
  void FindUniformUnits() {
    const std::uint32_t rate = tables_.rates[0];
    // Off by one once in a while, which PopChanges notices.
    const auto inverse = static_cast<std::uint32_t>(std::min<std::uint64_t>(kRansTotal / rate + 1, ~0u));
    for (std::size_t l = 0; l < running_; l += kWordLanes) {
      const auto skipped = MultiplyShift<32>(hn::Load(kWords, s_.time.data() + l), hn::Set(kWords, inverse));
      const auto begin = hn::Mul(skipped, hn::Set(kWords, rate));
      hn::Store(hn::Add(hn::Load(kWords, s_.next.data() + l), skipped), kWords, s_.index.data() + l);
      hn::Store(begin, kWords, s_.begin.data() + l);
      hn::Store(hn::Add(begin, hn::Set(kWords, rate)), kWords, s_.end.data() + l);
    }
    for (std::size_t l = 0; l < running_; ++l) {
      // An index past the end was a wrong guess.
      const std::uint32_t index = std::min(s_.index[l], s_.tile[l]->unit_count - 1);
      s_.old_unit[l] = LoadUnit<Unit>(s_.base[l], index);
    }
  }

  static constexpr std::size_t kLineBytes = 64;

  std::span<SparseTile> tiles_;
  const ExpandedTables& tables_;
  LaneState s_;
  std::size_t running_ = 0;
  std::size_t next_tile_ = 0;
};

void DecodeSparse(std::span<SparseTile> tiles, int unit_bytes, const ExpandedTables& tables, std::uint32_t* times,
                  std::size_t times_stride) {
  WithUnit(unit_bytes, [&]<typename Unit>() {
    if constexpr (sizeof(Unit) == 8) {
      for (SparseTile& tile : tiles)
        DecodeTile<Unit>(tile, tables, times);  // does not fit the lanes' 32 bits, and is rare
    } else if (tables.uniform) {
      LaneDecoder<Unit, true>(tiles, tables, times, times_stride).Run();
    } else {
      LaneDecoder<Unit, false>(tiles, tables, times, times_stride).Run();
    }
  });
}
