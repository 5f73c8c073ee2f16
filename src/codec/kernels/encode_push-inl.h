// EncodeKernels::push_events. Included by encode_kernels_simd.cc inside each target's namespace; no include guard on
// purpose.
//
// A stream is one chain of divisions, so many streams go side by side, one a lane (rans.h has the step in plain form).
//
// The quotient of state / width, which vectors of integers do not have, is guessed with doubles and made exact with
// integers. Let x be the state and w the width, 1 <= w < 2^32 and x < 2^32 w, let y = x / w exactly and q = floor(y).
// The guess is g = round(t), t = x' v - 1/2, where x' is x as a double and v an inverse of w that is 2^-48 of it too
// small. Five roundings, each off by a factor of at most 1 ± 2^-53, lie between x, w and x' v - 1/2, so
//   y - 1/2 - 2^-47 y <= t <= y - 1/2 - 2^-49 y,   and y < 2^32.
// The second gives g <= t + 1/2 <= y, so g <= q; and g = 0 where y < 1, for then -1/2 <= t < 1/2, and a tie goes to the
// even number. The first gives g >= t - 1/2 >= y - 1 - 2^-15 > q - 2, so g >= q - 1. The rest x - g w, exact, therefore
// tells whether the quotient is g or g + 1. Doubles must round to nearest, as they do unless somebody asks otherwise.

// So many vectors at once hide the latency of a step.
constexpr std::size_t kPushVectors = 4;
constexpr std::size_t kPushLanes = kPushVectors * kLanesU64;
// Events are taken from the lanes in rounds of so many each. A lane without events goes on with the certain ones before
// its first.
constexpr std::size_t kRound = kPushPad;

// The state of the lanes of a few vectors, and what a round takes and gives.
struct PushState {
  HWY_ALIGN std::array<std::uint64_t, kPushLanes> state;
  HWY_ALIGN std::array<std::uint64_t, kPushLanes * kRound> events;  // by step, then lane
  HWY_ALIGN std::array<std::uint64_t, kPushLanes * kRound> before;  // the states before each step, by vector first
  std::array<std::uint64_t, kPushVectors> emitted;  // a bit for each step and lane whose state's lower half is a word
  std::array<const RansEvent*, kPushLanes> first;   // of the lane
  std::array<const RansEvent*, kPushLanes> next;    // one after it
  std::array<std::uint32_t*, kPushLanes> words;
};
static_assert(kRound * kLanesU64 <= 64);

const hn::ScalableTag<double> kF64;
using VecF64 = hn::Vec<hn::ScalableTag<double>>;

HWY_INLINE VecF64 BitsToDouble(VecU64 bits) { return hn::BitCast(kF64, bits); }

HWY_INLINE auto SignedGreater(VecU64 a, VecU64 b) {
  const hn::ScalableTag<std::int64_t> ints;
  return hn::RebindMask(kU64, hn::Gt(hn::BitCast(ints, a), hn::BitCast(ints, b)));
}

// One step of RansEncoder::Push; `emitted` says which lanes give a word.
HWY_INLINE VecU64 PushStep(VecU64 state, VecU64 event, std::uint64_t& emitted) {
  const auto low_mask = hn::Set(kU64, 0xffffffff);
  const auto two32 = hn::Set(kU64, kRansTotal);
  const auto start = hn::And(event, low_mask);
  const auto width = hn::ShiftRight<32>(event);
  const auto certain = hn::Eq(width, hn::Zero(kU64));
  const auto largest_rest = hn::Sub(width, hn::Set(kU64, 1));
  // 2^52 or 2^84 plus something below 2^32 is a double whose lowest bits are the something.
  const auto magic52 = hn::Set(kU64, 0x4330000000000000);
  const auto magic84 = hn::Set(kU64, 0x4530000000000000);
  const auto width_double = hn::Sub(BitsToDouble(hn::Or(width, magic52)), hn::Set(kF64, 0x1p52));
  const auto inverse = hn::Div(hn::Set(kF64, 1.0 - 0x1p-48), width_double);
  // All up to here does not wait for the state.

  const auto high = hn::ShiftRight<32>(state);
  const auto emit = SignedGreater(high, hn::IfThenElse(certain, two32, largest_rest));
  emitted = MaskBits(kU64, emit);
  const auto x = hn::IfThenElse(emit, high, state);

  const auto x_high = hn::Sub(BitsToDouble(hn::Or(hn::ShiftRight<32>(x), magic84)), hn::Set(kF64, 0x1p84 + 0x1p52));
  const auto x_double = hn::Add(x_high, BitsToDouble(hn::Or(hn::And(x, low_mask), magic52)));
  // Rounds to an integer, which the lowest bits then are: 1.5 * 2^52 has room for it on both sides.
  const auto guess =
      hn::BitCast(kU64, hn::Add(hn::MulSub(x_double, inverse, hn::Set(kF64, 0.5)), hn::Set(kF64, 0x1.8p52)));
  const auto rest = hn::Sub(x, hn::MulEven(hn::BitCast(kU32, guess), hn::BitCast(kU32, width)));
  const auto pushed = hn::Add(hn::Add(hn::ShiftLeft<32>(guess), start), rest);
  // One more in the quotient is one width less in the rest.
  const auto correction = hn::IfThenElseZero(SignedGreater(rest, largest_rest), hn::Sub(two32, width));
  return hn::IfThenElse(certain, state, hn::Add(pushed, correction));
}

// Takes the last kRound events of every lane of the first `vectors`, transposed: a step's events side by side.
HWY_INLINE void TakeEvents(PushState& s, std::size_t vectors) {
  const hn::Full128<std::uint64_t> two;
  for (std::size_t l = 0; l < vectors * kLanesU64; l += kLanesU64) {
    const std::uint8_t* from[kLanesU64];
    for (std::size_t k = 0; k < kLanesU64; ++k) {
      s.next[l + k] = std::max(s.next[l + k], s.first[l + k]) - kRound;
      from[k] = reinterpret_cast<const std::uint8_t*>(s.next[l + k]);
    }
    for (std::size_t step = 0; step < kRound; step += 2) {
      // Two events of each lane, of the even lanes and of the odd ones; backwards.
      const auto pair = [&](std::size_t k) {
        return hn::BitCast(two,
                           hn::LoadU(hn::Full128<std::uint8_t>(), from[k] + (kRound - 2 - step) * sizeof(RansEvent)));
      };
      const auto pairs = [&](std::size_t k) -> VecU64 {
#if HWY_MAX_BYTES >= 64
        const hn::Full256<std::uint64_t> half;
        return hn::Combine(kU64, hn::Combine(half, pair(k + 6), pair(k + 4)), hn::Combine(half, pair(k + 2), pair(k)));
#elif HWY_MAX_BYTES >= 32
        return hn::Combine(kU64, pair(k + 2), pair(k));
#else
        return pair(k);
#endif
      };
      const VecU64 even = pairs(0);
      const VecU64 odd = pairs(1);
      hn::Store(hn::InterleaveUpper(kU64, even, odd), kU64, s.events.data() + step * kPushLanes + l);
      hn::Store(hn::InterleaveLower(kU64, even, odd), kU64, s.events.data() + (step + 1) * kPushLanes + l);
    }
  }
}

// A round of all lanes of the first kVectors.
template <std::size_t kVectors>
HWY_INLINE void PushRound(PushState& s) {
  VecU64 state0 = hn::Load(kU64, s.state.data());
  VecU64 state1 = hn::Load(kU64, s.state.data() + kLanesU64);
  VecU64 state2 = hn::Load(kU64, s.state.data() + 2 * kLanesU64);
  VecU64 state3 = hn::Load(kU64, s.state.data() + 3 * kLanesU64);
  s.emitted.fill(0);
  for (std::size_t step = 0; step < kRound; ++step) {
    const auto push = [&](std::size_t vector, VecU64& state) HWY_ATTR {
      hn::Store(state, kU64, s.before.data() + (vector * kRound + step) * kLanesU64);
      std::uint64_t emitted = 0;
      state = PushStep(state, hn::Load(kU64, s.events.data() + step * kPushLanes + vector * kLanesU64), emitted);
      s.emitted[vector] |= emitted << (step * kLanesU64);
    };
    push(0, state0);
    if constexpr (kVectors > 1) push(1, state1);
    if constexpr (kVectors > 2) push(2, state2);
    if constexpr (kVectors > 3) push(3, state3);
  }
  hn::Store(state0, kU64, s.state.data());
  hn::Store(state1, kU64, s.state.data() + kLanesU64);
  hn::Store(state2, kU64, s.state.data() + 2 * kLanesU64);
  hn::Store(state3, kU64, s.state.data() + 3 * kLanesU64);
  for (std::size_t vector = 0; vector < kVectors; ++vector) {
    const std::uint64_t* before = s.before.data() + vector * kRound * kLanesU64;
    std::uint32_t** words = s.words.data() + vector * kLanesU64;
    for (std::uint64_t left = s.emitted[vector]; left != 0; left &= left - 1) {
      const std::size_t at = LowestBit(left);
      *words[at % kLanesU64]++ = static_cast<std::uint32_t>(before[at]);
    }
  }
}

// Up to kPushLanes lanes, those with the most events first.
void PushTogether(std::span<PushLane* const> lanes) {
  static constexpr std::array<RansEvent, kPushPad> kNone{};
  PushState s;
  s.state.fill(1);
  s.first.fill(kNone.data() + kPushPad);
  s.next.fill(kNone.data() + kPushPad);
  for (std::size_t k = 0; k < lanes.size(); ++k) {
    s.first[k] = lanes[k]->events;
    s.next[k] = lanes[k]->events + lanes[k]->count;
    s.words[k] = lanes[k]->words;
  }
  for (std::size_t done = 0; done < lanes[0]->count; done += kRound) {
    // The later vectors' lanes end earlier.
    std::size_t vectors = 1;
    while (vectors < kPushVectors && vectors * kLanesU64 < lanes.size() && done < lanes[vectors * kLanesU64]->count) {
      ++vectors;
    }
    TakeEvents(s, vectors);
    if (vectors == 4) {
      PushRound<4>(s);
    } else if (vectors == 3) {
      PushRound<3>(s);
    } else if (vectors == 2) {
      PushRound<2>(s);
    } else {
      PushRound<1>(s);
    }
  }
  for (std::size_t k = 0; k < lanes.size(); ++k) {
    lanes[k]->word_count = static_cast<std::size_t>(s.words[k] - lanes[k]->words);
    lanes[k]->state = s.state[k];
  }
}

void PushEvents(std::span<PushLane> lanes) {
  std::array<PushLane*, kLanes> sorted;
  WW_CHECK(lanes.size() <= sorted.size());
  std::transform(lanes.begin(), lanes.end(), sorted.begin(), [](PushLane& lane) { return &lane; });
  const std::span<PushLane*> by_count = std::span(sorted).first(lanes.size());
  std::sort(by_count.begin(), by_count.end(), [](const PushLane* a, const PushLane* b) { return a->count > b->count; });
  for (std::size_t first = 0; first < by_count.size(); first += kPushLanes) {
    PushTogether(by_count.subspan(first, std::min(kPushLanes, by_count.size() - first)));
  }
}
