// What the lanes of one vector have: their tiles, where each is in its stream, and the entropy coder's steps on them
// (decode_sparse_lanes-inl.h). Included by kernels_simd.cc inside each target's namespace; no include guard on purpose.

// Words of the stream that an event takes at most: for the change, its symbol, and extra bits.
constexpr std::uint32_t kEventWords = 3;
// Events between two looks at what is rare: new tiles, the end of the stream, moving results out.
constexpr std::uint32_t kRound = 4;
constexpr std::uint32_t kRowWords = 4;  // loaded at once
// With fewer words left than this at the beginning of a round, a row might begin before the stream.
constexpr std::uint32_t kTailWords = kRound * kEventWords + kRowWords;

// The tiles of one vector, all of one entry, and where each is in its stream.
template <typename Unit>
struct LaneGroup {
  static constexpr std::size_t kCount = kLanesU32;
  using Numbers = std::array<std::uint32_t, kCount>;

  // One number a lane, loaded as vectors. The coder's state is high * 2^32 + low.
  HWY_ALIGN Numbers low;
  HWY_ALIGN Numbers high;
  HWY_ALIGN Numbers words_left;
  HWY_ALIGN Numbers room;        // for further changes
  HWY_ALIGN Numbers active;      // all ones, or nothing for a lane without a tile
  HWY_ALIGN Numbers zero;        // when the wait began, from the window's beginning on (negative, if before it)
  HWY_ALIGN Numbers sum;         // of the window
  HWY_ALIGN Numbers first_unit;  // of the window
  HWY_ALIGN Numbers next;        // uniform rates only: the first unit not yet passed …
  HWY_ALIGN Numbers unit_count;  // … and how many there are
  // Of the event that is being decoded.
  HWY_ALIGN Numbers position;
  HWY_ALIGN Numbers target;  // the guessed time, from the window's beginning on
  HWY_ALIGN Numbers cell;
  HWY_ALIGN Numbers block;
  HWY_ALIGN Numbers begin;
  HWY_ALIGN Numbers index;
  HWY_ALIGN Numbers unit;
  HWY_ALIGN Numbers unit_class;
  HWY_ALIGN Numbers down;   // all ones or nothing
  HWY_ALIGN Numbers width;  // of the symbol's interval, less one …
  HWY_ALIGN Numbers rest;   // … and how far into it the coder is
  HWY_ALIGN Numbers magnitude;
  HWY_ALIGN Numbers extra_bits;
  HWY_ALIGN std::array<Numbers, 4> pairs;         // units of the block, two a number
  HWY_ALIGN std::array<Numbers, kRowWords> word;  // of the stream, the next one first; the last ones may be old …
  HWY_ALIGN Numbers words_at_load;                // … since then: words_left at that time
  HWY_ALIGN std::array<Numbers, kWindowCells> cell_lasts;  // the last time within each cell of the window
  // The events of a round.
  HWY_ALIGN std::array<Numbers, kRound> index_of;
  HWY_ALIGN std::array<Numbers, kRound> old_of;  // and the new unit above it, if both fit
  HWY_ALIGN std::array<Numbers, kRound> new_of;
  // The rest is each lane's own.
  std::array<LaneWindow, kCount> window;
  std::array<const std::uint8_t*, kCount> words;
  HWY_ALIGN std::array<std::array<std::uint32_t, kRowWords + kTailWords>, kCount> tail;  // zeros, and the first words
  std::array<SparseTile*, kCount> tile;
  std::array<const std::uint8_t*, kCount> base;  // the tile's units …
  std::array<bool, kCount> is_overlaid;          // … seen through its overlay, if it is not in them already
  std::array<std::uint8_t*, kCount> changes;     // the next to be written

  const ExpandedTables* tables;
  LaneRates rates;
  LaneSymbolEnds symbol_ends;
  std::uint32_t running;  // a bit for each lane with a tile
  std::span<SparseTile* const> queue;

  [[nodiscard]] RansDecoder Coder(std::size_t l) const {
    return RansDecoder::Resume((std::uint64_t{high[l]} << 32) | low[l], words[l], words_left[l]);
  }
  void StoreCoder(const RansDecoder& coder, std::size_t l) {
    low[l] = static_cast<std::uint32_t>(coder.state());
    high[l] = static_cast<std::uint32_t>(coder.state() >> 32);
    words_left[l] = words_at_load[l] = static_cast<std::uint32_t>(coder.words_left());
    if (words_left[l] < kTailWords) MoveToTail(l);
    const std::uint8_t* end = words[l] + 4 * std::size_t{words_left[l]};
    for (std::size_t k = 0; k < kRowWords; ++k) word[k][l] = LoadU32(end - 4 * (k + 1));
  }
  // The first words of a stream are read from a copy, before which there is room.
  void MoveToTail(std::size_t l) {
    const std::uint8_t* copy = reinterpret_cast<const std::uint8_t*>(tail[l].data() + kRowWords);
    if (words[l] == copy) return;
    std::memcpy(tail[l].data() + kRowWords, words[l], 4 * std::size_t{words_left[l]});
    words[l] = copy;
  }
  [[nodiscard]] Unit UnitAt(std::size_t l, std::uint32_t at) const {
    const LaneWindow& w = window[l];
    if (!is_overlaid[l]) return LoadUnit<Unit>(base[l], at);
    if (at - w.first_unit < w.unit_count) return LoadUnit<Unit>(w.units, at - w.first_unit);
    return OverlaidUnit<Unit>(tile[l]->overlay, at, LoadUnit<Unit>(base[l], at));
  }
  [[nodiscard]] std::uint32_t RateOfUnit(std::size_t l, std::uint32_t at) const {
    const auto field = static_cast<std::uint32_t>(UnitAt(l, at) >> tables->rule.shift);
    return rates.rate[tables->class_of_field[field & tables->rule.FieldMask()]];
  }
};

// The coder's state and words, while an event is being decoded.
struct LaneCoder {
  VecU32 low;
  VecU32 high;
  VecU32 left;
  VecU32 word[kRowWords];

  template <typename Group>
  HWY_INLINE explicit LaneCoder(const Group& g)
      : low(hn::Load(kU32, g.low.data())),
        high(hn::Load(kU32, g.high.data())),
        left(hn::Load(kU32, g.words_left.data())),
        word{hn::Load(kU32, g.word[0].data()), hn::Load(kU32, g.word[1].data()), hn::Load(kU32, g.word[2].data()),
             hn::Load(kU32, g.word[3].data())} {}
  template <typename Group>
  HWY_INLINE void Store(Group& g) const {
    hn::Store(low, kU32, g.low.data());
    hn::Store(high, kU32, g.high.data());
    hn::Store(left, kU32, g.words_left.data());
    hn::Store(word[0], kU32, g.word[0].data());
    hn::Store(word[1], kU32, g.word[1].data());
    hn::Store(word[2], kU32, g.word[2].data());
  }

  // Pops an event whose width is `width`, or width_less_one + 1; `rest` is how far into it the coder is.
  HWY_INLINE void Pop(VecU32 width, VecU32 rest) {
    const auto mask = hn::Set(kU64, 0xffffffff);
    const auto even = hn::Add(hn::MulEven(width, high), hn::And(hn::BitCast(kU64, rest), mask));
    const auto odd = hn::Add(hn::MulEven(OddLanes(width), OddLanes(high)), hn::ShiftRight<32>(hn::BitCast(kU64, rest)));
    Refill(hn::OddEven(hn::BitCast(kU32, hn::ShiftLeft<32>(odd)), hn::BitCast(kU32, even)),
           hn::OddEven(hn::BitCast(kU32, odd), hn::BitCast(kU32, hn::ShiftRight<32>(even))));
  }
  // The same for an event that may be certain, whose width is width_less_one + 1.
  HWY_INLINE void PopWide(VecU32 width_less_one, VecU32 rest) {
    const auto mask = hn::Set(kU64, 0xffffffff);
    const auto high_even = hn::And(hn::BitCast(kU64, high), mask);
    const auto high_odd = hn::ShiftRight<32>(hn::BitCast(kU64, high));
    const auto even =
        hn::Add(hn::Add(hn::MulEven(width_less_one, high), high_even), hn::And(hn::BitCast(kU64, rest), mask));
    const auto odd = hn::Add(hn::Add(hn::MulEven(OddLanes(width_less_one), OddLanes(high)), high_odd),
                             hn::ShiftRight<32>(hn::BitCast(kU64, rest)));
    Refill(hn::OddEven(hn::BitCast(kU32, hn::ShiftLeft<32>(odd)), hn::BitCast(kU32, even)),
           hn::OddEven(hn::BitCast(kU32, odd), hn::BitCast(kU32, hn::ShiftRight<32>(even))));
  }
  // Pops `count` raw bits, 0 to 31, and returns them.
  HWY_INLINE VecU32 PopBits(VecU32 count) {
    const auto all = hn::Set(kU32, 0xffffffff);
    const auto rest = hn::Sub(hn::Set(kU32, 31), count);  // and one more, for no shift may be by 32
    const auto bits = hn::ShiftRight<1>(low >> rest);
    const auto new_low = hn::Or(hn::ShiftLeft<1>(high << rest), hn::And(low, all >> count));
    // No bits are no event, after which nothing is read either.
    Refill(new_low, high >> count, hn::Ne(count, hn::Zero(kU32)));
    return bits;
  }

 private:
  HWY_INLINE void Refill(VecU32 new_low, VecU32 new_high) { Refill(new_low, new_high, hn::Ne(left, hn::Zero(kU32))); }
  template <typename Mask>
  HWY_INLINE void Refill(VecU32 new_low, VecU32 new_high, Mask may) {
    const auto zero = hn::Zero(kU32);
    const auto due = hn::And(hn::And(hn::Eq(new_high, zero), hn::Ne(left, zero)), may);
    low = hn::IfThenElse(due, word[0], new_low);
    high = hn::IfThenElse(due, new_low, new_high);
    left = hn::Sub(left, hn::IfThenElseZero(due, hn::Set(kU32, 1)));
    word[0] = hn::IfThenElse(due, word[1], word[0]);
    word[1] = hn::IfThenElse(due, word[2], word[1]);
    word[2] = hn::IfThenElse(due, word[3], word[2]);
  }
};

// Four numbers of each lane, a lane's beside each other, to a vector each: load(lane) gives a lane's four.
struct FourColumns {
  HWY_INLINE FourColumns() {}  // NOLINT(modernize-use-equals-default): the compiler's own would not be for this target
  VecU32 column[4];
};
HWY_INLINE FourColumns TransposeFour(VecU32 row0, VecU32 row1, VecU32 row2, VecU32 row3) {
  const auto low01 = hn::BitCast(kU64, hn::InterleaveLower(kU32, row0, row1));
  const auto low23 = hn::BitCast(kU64, hn::InterleaveLower(kU32, row2, row3));
  const auto high01 = hn::BitCast(kU64, hn::InterleaveUpper(kU32, row0, row1));
  const auto high23 = hn::BitCast(kU64, hn::InterleaveUpper(kU32, row2, row3));
  FourColumns columns;
  columns.column[0] = hn::BitCast(kU32, hn::InterleaveLower(kU64, low01, low23));
  columns.column[1] = hn::BitCast(kU32, hn::InterleaveUpper(kU64, low01, low23));
  columns.column[2] = hn::BitCast(kU32, hn::InterleaveLower(kU64, high01, high23));
  columns.column[3] = hn::BitCast(kU32, hn::InterleaveUpper(kU64, high01, high23));
  return columns;
}
template <typename Load>
HWY_INLINE FourColumns LoadFour(const Load& load) {
  // Row r holds lanes r, r + 4, r + 8, …, so that the four rows interleave to lanes in order.
  const auto row = [&](std::size_t r) HWY_ATTR -> VecU32 {
#if HWY_MAX_BYTES >= 64
    const hn::Full256<std::uint32_t> half;
    const auto low = hn::Combine(half, load(r + 4), load(r));
    const auto high = hn::Combine(half, load(r + 12), load(r + 8));
    return hn::Combine(kU32, high, low);
#elif HWY_MAX_BYTES >= 32
    return hn::Combine(kU32, load(r + 4), load(r));
#else
    return load(r);
#endif
  };
  const VecU32 row0 = row(0);
  const VecU32 row1 = row(1);
  const VecU32 row2 = row(2);
  const VecU32 row3 = row(3);
  return TransposeFour(row0, row1, row2, row3);
}
