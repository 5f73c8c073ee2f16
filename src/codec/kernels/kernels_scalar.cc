// The scalar kernels: plain C++, the definition the others are compared with.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>

#include "base/bytes.h"
#include "codec/format/gap_tile.h"
#include "codec/format/step_coding.h"
#include "codec/format/units.h"
#include "codec/format/waiting.h"
#include "codec/kernels/kernels.h"

namespace weightwire {
namespace {

std::uint32_t FindChanged(const std::uint8_t* old_units, const std::uint8_t* new_units, std::uint32_t count,
                          int unit_bytes, std::uint16_t* positions) {
  return WithUnit(unit_bytes, [&]<typename Unit>() {
    std::uint32_t found = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      positions[found] = static_cast<std::uint16_t>(i);
      found += LoadUnit<Unit>(old_units, i) != LoadUnit<Unit>(new_units, i);
    }
    return found;
  });
}

template <typename Unit>
std::uint64_t SumRates(const std::uint8_t* units, std::uint32_t count, const ExpandedTables& tables,
                       std::uint32_t* times) {
  const int shift = tables.rule.shift;
  const std::uint32_t mask = tables.rule.FieldMask();
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (i % kTimeBlock == 0) times[i / kTimeBlock] = static_cast<std::uint32_t>(sum);
    sum += tables.rate_of_field[(LoadUnit<Unit>(units, i) >> shift) & mask];
  }
  times[(count + kTimeBlock - 1) / kTimeBlock] = static_cast<std::uint32_t>(sum);
  return sum;
}

DigestSums DigestWords(const std::uint8_t* data, std::uint32_t first_word, std::uint32_t word_count,
                       const DigestKeys& keys) {
  DigestSums sums{};
  for (std::uint32_t i = 0; i < word_count; ++i) {
    const std::uint64_t word = LoadU32(data + 4 * std::size_t{i});
    for (int lane = 0; lane < 2; ++lane) {
      const std::uint64_t sum = sums.sums[lane] + word * keys.word[lane][first_word + i];
      sums.sums[lane] = (sum & kDigestPrime) + (sum >> 61);
    }
  }
  return sums;
}

std::size_t DigestU16(std::uint32_t first_unit, const std::uint32_t* positions, std::size_t count,
                      const std::uint8_t* old_units, const std::uint8_t* new_units, const DigestKeys& keys,
                      ChangedBlock* blocks) {
  std::size_t block_count = 0;
  for (std::size_t k = 0; k < count; ++k) {
    const std::uint32_t unit = first_unit + (positions[k] - positions[0]);
    const std::uint32_t block = unit >> kDigestBlockU16Log2;
    if (block_count == 0 || blocks[block_count - 1].block != block) blocks[block_count++] = {block, {}, {}};
    const std::int64_t difference =
        std::int64_t{LoadUnit<std::uint16_t>(new_units, k)} - LoadUnit<std::uint16_t>(old_units, k);
    for (std::size_t lane = 0; lane < 2; ++lane) {
      const std::int64_t product = difference * keys.word[lane][unit / 2 % kDigestBlockWords];
      blocks[block_count - 1].all[lane] += product;
      if (unit % 2 != 0) blocks[block_count - 1].odd[lane] += product;
    }
  }
  return block_count;
}

void SplitU16(const std::uint8_t* changes, std::size_t count, std::uint32_t first, std::uint32_t* positions,
              std::uint8_t* old_units, std::uint8_t* new_units) {
  for (std::size_t k = 0; k < count; ++k) {
    const auto change = LoadChange<std::uint16_t>(changes, k);
    positions[k] = first + change.position;
    StoreUnit<std::uint16_t>(old_units, k, change.old_unit);
    StoreUnit<std::uint16_t>(new_units, k, change.new_unit);
  }
}

#include "codec/kernels/decode_gaps-inl.h"
#include "codec/kernels/decode_sparse-inl.h"

void DecodeSparse(std::span<SparseTile> tiles, int unit_bytes, std::uint32_t* times) {
  WithUnit(unit_bytes, [&]<typename Unit>() {
    for (SparseTile& tile : tiles) DecodeTile<Unit>(tile, *tile.tables, times);
  });
}

template <typename Unit>
void DecodeGapTile(GapTile& tile) {
  GapCursor cursor;
  cursor.next = tile.begin;
  tile.intact = tile.stream.wide ? WalkGaps<std::uint16_t>(tile, cursor) : WalkGaps<std::uint8_t>(tile, cursor);
  if (!tile.intact) return;
  TakeOldUnits<Unit>(tile, 0, tile.stream.changed);
  tile.intact = TakeSteps<Unit>(tile, 0, cursor.at);
  if (tile.intact && tile.follow_up != nullptr) (*tile.follow_up)(tile, 0, tile.stream.changed);
}

void DecodeGaps(std::span<GapTile> tiles, int unit_bytes) {
  WithUnit(unit_bytes, [&]<typename Unit>() {
    for (GapTile& tile : tiles) DecodeGapTile<Unit>(tile);
  });
}

std::uint64_t SumRatesOfWidth(const std::uint8_t* units, std::uint32_t count, int unit_bytes,
                              const ExpandedTables& tables, std::uint32_t* times) {
  return WithUnit(unit_bytes, [&]<typename Unit>() { return SumRates<Unit>(units, count, tables, times); });
}

}  // namespace

const Kernels* ScalarKernels() {
  static const Kernels kKernels = {
      "scalar", FindChanged,  SumRatesOfWidth, DigestWords,           DigestU16,
      SplitU16, DecodeSparse, DecodeGaps,      ScalarEncodeKernels(), ScalarConvertKernels()};
  return &kKernels;
}

}  // namespace weightwire
