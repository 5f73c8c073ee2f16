// The kernel of gaps mode once per instruction set, through highway; kernels_simd.cc chooses.
//
// Positions are running sums over the gaps. They are found for a hundred changes or so, and their lines of the base are
// asked for, before the old bits of the hundred before are taken. So the base, of which only a part is touched, is on
// its way meanwhile, and while tiles that are decoded are followed up. (Asking and taking in turn, change by change, is
// slower by a third.)
#include "codec/kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels/decode_gaps_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as highway demands.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <span>
#include <type_traits>

#include "base/bytes.h"
#include "codec/format/gap_tile.h"
#include "codec/format/units.h"
#include "codec/kernels/kernels.h"

// The baseline without vectors is kernels_scalar.cc.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace weightwire {
namespace HWY_NAMESPACE {
namespace {

#include "codec/kernels/decode_gaps-inl.h"
#include "codec/kernels/simd_common-inl.h"

// Changes whose lines of the base are asked for at once.
constexpr std::uint32_t kAskedAtOnce = 128;

// Asks for the line of a unit. Into the second level: the first is too small, and would be waited for.
template <typename Unit>
HWY_INLINE void PrefetchLines(const GapTile& tile, std::uint32_t position) {
  __builtin_prefetch(tile.base + std::size_t{position} * sizeof(Unit), 0, 2);
}

// As WalkGaps, for kAskedAtOnce changes or as far as whole vectors go; asks for their lines.
template <typename Unit, typename Gap>
bool WalkGapVectors(const GapTile& tile, GapCursor& cursor) {
  constexpr std::uint32_t kCount = hn::MaxLanes(hn::ScalableTag<std::uint32_t>());
  const hn::Rebind<Gap, decltype(kU32)> gaps_tag;
  const hn::Repartition<std::uint8_t, decltype(gaps_tag)> gap_bytes_tag;
  const std::uint8_t* const gaps = tile.stream.rest.data();
  const std::size_t gap_bytes = tile.stream.rest.size();
  // Whole vectors are stored, so there must be room for one more. It may hold fewer changes than lanes.
  const std::uint32_t until = std::min(cursor.found + kAskedAtOnce, tile.stream.changed);
  while (cursor.found < until && tile.stream.changed - cursor.found >= kCount &&
         gap_bytes - cursor.at >= kCount * sizeof(Gap)) {
    const auto gap = hn::PromoteTo(kU32, hn::BitCast(gaps_tag, hn::LoadU(gap_bytes_tag, gaps + cursor.at)));
    const auto changes = hn::Ne(gap, hn::Set(kU32, kLongestGap<Gap>));
    const auto passed = hn::Add(gap, hn::IfThenElseZero(changes, hn::Set(kU32, 1)));
    const auto after = hn::Add(RunningSums(passed), hn::Set(kU32, cursor.next));
    const std::uint32_t next = hn::ExtractLane(after, kCount - 1);
    if (next > tile.end) return false;
    std::uint32_t* to = tile.positions + cursor.found;
    hn::StoreU(hn::Compress(hn::Sub(after, hn::Set(kU32, 1)), changes), kU32, to);
    for (std::uint32_t k = 0; k < kCount; ++k) PrefetchLines<Unit>(tile, to[k]);
    cursor.found += static_cast<std::uint32_t>(std::popcount(MaskBits(kU32, changes)));
    cursor.next = next;
    cursor.at += kCount * sizeof(Gap);
  }
  return true;
}

// As TakeSteps: the steps that fit their codes by vectors, the others one by one.
template <typename Unit>
bool TakeStepVectors(const GapTile& tile, std::size_t at) {
  const hn::ScalableTag<Unit> units;
  constexpr std::uint32_t kCount = hn::MaxLanes(hn::ScalableTag<Unit>());
  const hn::Rebind<std::uint8_t, decltype(units)> codes_tag;
  const hn::Repartition<std::uint16_t, decltype(codes_tag)> pairs_tag;
  const hn::Rebind<std::uint8_t, decltype(pairs_tag)> halves_tag;
  const hn::Repartition<std::uint8_t, decltype(units)> unit_bytes_tag;
  const auto one = hn::Set(units, Unit{1});
  auto wrong = hn::Zero(units);
  std::uint32_t k = 0;
  for (; tile.stream.changed - k >= kCount; k += kCount) {
    // A byte holds two codes: spread to two bytes, in order.
    const auto bytes = hn::PromoteTo(pairs_tag, hn::LoadU(halves_tag, tile.stream.steps + k / 2));
    const auto spread = hn::And(hn::Or(bytes, hn::ShiftLeft<4>(bytes)), hn::Set(pairs_tag, 0x0f0f));
    hn::Vec<decltype(units)> code;
    if constexpr (sizeof(Unit) == 1) {
      code = hn::BitCast(units, spread);
    } else {
      code = hn::PromoteTo(units, hn::BitCast(codes_tag, spread));
    }
    const auto old_units = hn::BitCast(units, hn::LoadU(unit_bytes_tag, tile.old_units + k * sizeof(Unit)));
    const auto is_up = hn::Eq(hn::And(code, one), hn::Zero(units));
    const auto magnitude = hn::Add(hn::ShiftRight<1>(code), one);
    const auto new_units = hn::IfThenElse(is_up, hn::Add(old_units, magnitude), hn::Sub(old_units, magnitude));
    hn::StoreU(hn::BitCast(unit_bytes_tag, new_units), unit_bytes_tag, tile.new_units + k * sizeof(Unit));
    // A step that went past either end came out on the other side.
    const auto is_long = hn::Gt(code, hn::Set(units, static_cast<Unit>(kFirstLongStep - 1)));
    const auto is_wrong = hn::AndNot(is_long, hn::Xor(is_up, hn::Gt(new_units, old_units)));
    wrong = hn::Or(wrong, hn::VecFromMask(units, is_wrong));
    for (std::uint64_t bits = MaskBits(units, is_long); bits != 0; bits &= bits - 1) {
      if (!TakeStep<Unit>(tile, k + LowestBit(bits), at)) return false;
    }
  }
  if (!hn::AllFalse(units, hn::Ne(wrong, hn::Zero(units)))) return false;
  return TakeSteps<Unit>(tile, k, at);
}

// The next positions of a tile, kAskedAtOnce or as many as there are.
template <typename Unit, typename Gap>
bool FindPositions(const GapTile& tile, GapCursor& cursor) {
  const std::uint32_t before = cursor.found;
  if (!WalkGapVectors<Unit, Gap>(tile, cursor)) return false;
  if (cursor.found - before >= kAskedAtOnce) return true;
  const std::uint32_t by_vectors = cursor.found;
  if (!WalkGaps<Gap>(tile, cursor)) return false;
  for (std::uint32_t k = by_vectors; k < cursor.found; ++k) PrefetchLines<Unit>(tile, tile.positions[k]);
  return true;
}

// Changes that have their positions, and wait for their lines of the base.
struct WaitingChanges {
  GapTile* tile = nullptr;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::size_t at = 0;  // where the gaps end, once all are read
};

template <typename Unit>
void TakeWaiting(const WaitingChanges& waiting) {
  if (waiting.tile == nullptr) return;
  TakeOldUnits<Unit>(*waiting.tile, waiting.begin, waiting.end);
  if (waiting.end != waiting.tile->stream.changed) return;
  if constexpr (sizeof(Unit) == 8) {
    waiting.tile->intact = TakeSteps<Unit>(*waiting.tile, 0, waiting.at);  // too few to a vector to be worth it
  } else {
    waiting.tile->intact = TakeStepVectors<Unit>(*waiting.tile, waiting.at);
  }
}

// Follows up decoded tiles, a batch at a time.
class FollowUps {
 public:
  explicit FollowUps(std::span<const GapTile> tiles) : tiles_(tiles) {}

  // The next batch of the first `decoded` tiles; false if there is none.
  bool Next(std::size_t decoded) {
    for (; tile_ < decoded; ++tile_, at_ = 0) {
      const GapTile& tile = tiles_[tile_];
      if (!tile.intact || tile.follow_up == nullptr || at_ == tile.stream.changed) continue;
      const std::uint32_t count = std::min(kAskedAtOnce, tile.stream.changed - at_);
      (*tile.follow_up)(tile, at_, count);
      at_ += count;
      return true;
    }
    return false;
  }

 private:
  std::span<const GapTile> tiles_;
  std::size_t tile_ = 0;
  std::uint32_t at_ = 0;
};

template <typename Unit>
void DecodeGapTiles(std::span<GapTile> tiles) {
  WaitingChanges waiting;
  FollowUps follow_ups(tiles);
  std::size_t decoded = 0;
  for (GapTile& tile : tiles) {
    tile.intact = false;
    GapCursor cursor;
    cursor.next = tile.begin;
    bool found = true;
    do {
      const std::uint32_t begin = cursor.found;
      found = tile.stream.wide ? FindPositions<Unit, std::uint16_t>(tile, cursor)
                               : FindPositions<Unit, std::uint8_t>(tile, cursor);
      follow_ups.Next(decoded);
      TakeWaiting<Unit>(waiting);
      decoded = static_cast<std::size_t>(&tile - tiles.data());  // those before it
      waiting = {found ? &tile : nullptr, begin, cursor.found, cursor.at};
    } while (found && cursor.found < tile.stream.changed);
  }
  TakeWaiting<Unit>(waiting);
  while (follow_ups.Next(tiles.size())) {
  }
}

}  // namespace

void DecodeGaps(std::span<GapTile> tiles, int unit_bytes) {
  WithUnit(unit_bytes, [&]<typename Unit>() { DecodeGapTiles<Unit>(tiles); });
}

}  // namespace HWY_NAMESPACE
}  // namespace weightwire
HWY_AFTER_NAMESPACE();
#endif  // not HWY_SCALAR
