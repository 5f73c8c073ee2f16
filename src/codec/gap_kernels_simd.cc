// The kernel of gaps mode once per instruction set, through highway; kernels_simd.cc chooses.
//
// Positions are running sums over the gaps. They are found for a whole tile, and its lines of the base are asked for,
// before the steps of the tile before are taken: so the base, of which only a part is touched, is on its way meanwhile.
#include "codec/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/gap_kernels_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as highway demands.
#include <hwy/highway.h>

#include <limits>
#include <span>
#include <type_traits>

#include "base/bytes.h"
#include "codec/gap_tile.h"
#include "codec/kernels.h"
#include "codec/units.h"

// The baseline without vectors is kernels_scalar.cc.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace weightwire {
namespace HWY_NAMESPACE {
namespace {

#include "codec/gap_decode-inl.h"
#include "codec/simd_common-inl.h"

// As WalkGaps, as far as whole vectors go.
template <typename Unit, typename Gap>
bool WalkGapVectors(const GapTile& tile, GapCursor& cursor) {
  constexpr std::uint32_t kCount = hn::MaxLanes(hn::ScalableTag<std::uint32_t>());
  const hn::Rebind<Gap, decltype(kWords)> gaps_tag;
  const hn::Repartition<std::uint8_t, decltype(gaps_tag)> gap_bytes_tag;
  const std::uint8_t* const gaps = tile.stream.rest.data();
  const std::size_t gap_bytes = tile.stream.rest.size();
  // Whole vectors are stored, so there must be room for one more. It may hold fewer changes than lanes.
  while (tile.stream.changed - cursor.found >= kCount && gap_bytes - cursor.at >= kCount * sizeof(Gap)) {
    const auto gap = hn::PromoteTo(kWords, hn::BitCast(gaps_tag, hn::LoadU(gap_bytes_tag, gaps + cursor.at)));
    const auto changes = hn::Ne(gap, hn::Set(kWords, kLongestGap<Gap>));
    const auto passed = hn::Add(gap, hn::IfThenElseZero(changes, hn::Set(kWords, 1)));
    const auto after = hn::Add(RunningSums(passed), hn::Set(kWords, cursor.next));
    const std::uint32_t next = hn::ExtractLane(after, kCount - 1);
    if (next > tile.end) return false;
    std::uint32_t* to = tile.positions + cursor.found;
    hn::StoreU(hn::Compress(hn::Sub(after, hn::Set(kWords, 1)), changes), kWords, to);
    // Into the second level: the first is too small for what a tile touches, and would be waited for.
    for (std::uint32_t k = 0; k < kCount; ++k) {
      __builtin_prefetch(tile.base + std::size_t{to[k]} * sizeof(Unit), 0, 2);
    }
    cursor.found += static_cast<std::uint32_t>(hn::CountTrue(kWords, changes));
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

template <typename Unit>
bool FindGapPositions(const GapTile& tile, GapCursor& cursor) {
  cursor.next = tile.begin;
  return tile.stream.wide ? WalkGapVectors<Unit, std::uint16_t>(tile, cursor) && WalkGaps<std::uint16_t>(tile, cursor)
                          : WalkGapVectors<Unit, std::uint8_t>(tile, cursor) && WalkGaps<std::uint8_t>(tile, cursor);
}

template <typename Unit>
void DecodeGapTiles(std::span<GapTile> tiles) {
  GapTile* waiting = nullptr;  // has its positions, and waits for its base
  std::size_t waiting_at = 0;
  const auto finish = [&] {
    if (waiting == nullptr) return;
    TakeOldUnits<Unit>(*waiting);
    if constexpr (sizeof(Unit) == 8) {
      waiting->intact = TakeSteps<Unit>(*waiting, 0, waiting_at);  // too few to a vector to be worth it
    } else {
      waiting->intact = TakeStepVectors<Unit>(*waiting, waiting_at);
    }
  };
  for (GapTile& tile : tiles) {
    GapCursor cursor;
    tile.intact = false;
    const bool found = FindGapPositions<Unit>(tile, cursor);
    finish();
    waiting = found ? &tile : nullptr;
    waiting_at = cursor.at;
  }
  finish();
}

}  // namespace

void DecodeGaps(std::span<GapTile> tiles, int unit_bytes) {
  WithUnit(unit_bytes, [&]<typename Unit>() { DecodeGapTiles<Unit>(tiles); });
}

}  // namespace HWY_NAMESPACE
}  // namespace weightwire
HWY_AFTER_NAMESPACE();
#endif  // not HWY_SCALAR
