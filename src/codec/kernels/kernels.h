// The inner loops, once per instruction set: the scalar ones define the result, the others must equal them bit for bit
// (kernels_test.cc). All are pure functions over caller-owned memory, use integers only, accept any alignment and may
// be called from any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/result.h"
#include "codec/format/digest_value.h"
#include "codec/format/gap_tile.h"
#include "codec/format/tables.h"
#include "codec/format/units.h"
#include "codec/kernels/convert_kernels.h"
#include "codec/kernels/encode_kernels.h"
#include "codec/kernels/overlay.h"

namespace weightwire {

// Positions are found in chunks of at most this many units, so that they fit 16 bits.
inline constexpr std::uint32_t kChunkUnits = 4096;
// Times are kept for every eighth unit of a tile.
inline constexpr std::uint32_t kTimeBlock = 8;

// Times of a tile, one more for its end, and what a whole vector may read past that.
constexpr std::size_t TimesRoom(std::uint32_t unit_count) { return unit_count / kTimeBlock + 2 + 64; }

// The digest's geometry (spec/FORMAT.md, "Digest").
inline constexpr std::uint32_t kDigestBlockWords = 1024;
inline constexpr std::uint32_t kDigestBlockBytes = 4 * kDigestBlockWords;

// Keys of the words of a block, one table for each sum; every key is below 2^29 so that eight products fit 64 bits.
struct DigestKeys {
  std::array<std::array<std::uint32_t, kDigestBlockWords>, 2> word;
  std::array<std::array<std::uint32_t, 2>, kDigestBlockWords> pair;  // the same, both keys of a word together
};

struct DigestSums {
  std::array<std::uint64_t, 2> sums;  // below 2^61 + 8: reduced, though not to the smallest residue
};

// What changed units of 16 bits add to the sums of one block.
struct ChangedBlock {
  std::uint32_t block;              // counted from the block of unit 0
  std::array<std::int64_t, 2> all;  // the sum of key * (new - old), for both sums
  std::array<std::int64_t, 2> odd;  // the same of odd units alone: the upper halves of words
};
// Changes that are given to digest_u16 at most, and how far apart their units may be.
inline constexpr std::size_t kDigestBatch = 256;
inline constexpr std::uint32_t kDigestReach = std::uint32_t{1} << 31;
inline constexpr int kDigestBlockU16Log2 = 11;  // of the units of 16 bits in a block
static_assert(2 * kDigestBlockWords == 1u << kDigestBlockU16Log2);

// A changed unit of a tile. In memory it is the position and the old and new bits, each in two bytes at least.
template <typename Unit>
struct TileChange {
  std::uint32_t position;
  Unit old_unit;
  Unit new_unit;
};
constexpr std::size_t RecordBytes(int unit_bytes) { return 4 + 2 * static_cast<std::size_t>(std::max(2, unit_bytes)); }
template <typename Unit>
using RecordUnit = std::conditional_t<sizeof(Unit) == 1, std::uint16_t, Unit>;
template <typename Unit>
TileChange<Unit> LoadChange(const std::uint8_t* changes, std::size_t k) {
  const std::uint8_t* from = changes + k * RecordBytes(sizeof(Unit));
  return {LoadUnit<std::uint32_t>(from, 0), static_cast<Unit>(LoadUnit<RecordUnit<Unit>>(from + 4, 0)),
          static_cast<Unit>(LoadUnit<RecordUnit<Unit>>(from + 4, 1))};
}
template <typename Unit>
void StoreChange(std::uint8_t* changes, std::size_t k, const TileChange<Unit>& change) {
  std::uint8_t* to = changes + k * RecordBytes(sizeof(Unit));
  StoreUnit<std::uint32_t>(to, 0, change.position);
  StoreUnit<RecordUnit<Unit>>(to + 4, 0, change.old_unit);
  StoreUnit<RecordUnit<Unit>>(to + 4, 1, change.new_unit);
}

// One tile of the sparse modes, as the decoder sees it.
struct SparseTile {
  const std::uint8_t* base = nullptr;  // unit_count units …
  std::span<OverlaidUnits> overlay;    // … and what is seen instead of some of them; the decoder moves its lists on
  std::uint32_t unit_count = 0;
  std::span<const std::uint8_t> stream;  // the tile's bytes
  const ExpandedTables* tables = nullptr;
  std::uint32_t max_changed = 0;
  std::uint8_t* changes = nullptr;  // room for max_changed; the changes, ascending
  // Results.
  std::uint32_t changed = 0;
  bool intact = false;  // false: the stream is damaged, and the other results mean nothing
};

struct GapTile;

// What is to be done with the changes of a decoded tile. It is done in batches, while memory for later tiles is on its
// way: so it costs less than it would afterwards. The function must outlive it.
class GapFollowUp {
 public:
  template <typename Function>
  explicit GapFollowUp(const Function& function)
      : function_(&function),
        call_([](const void* called, const GapTile& tile, std::uint32_t first, std::uint32_t count) {
          (*static_cast<const Function*>(called))(tile, first, count);
        }) {}

  void operator()(const GapTile& tile, std::uint32_t first, std::uint32_t count) const {
    call_(function_, tile, first, count);
  }

 private:
  const void* function_;
  void (*call_)(const void* called, const GapTile& tile, std::uint32_t first, std::uint32_t count);
};

// One tile of gaps mode, as the decoder sees it.
struct GapTile {
  GapStream stream;
  const std::uint8_t* base = nullptr;  // the units that positions count from; there are `end`
  std::span<OverlaidUnits> overlay;    // of `base`, one for all tiles that are decoded together
  std::uint32_t begin = 0;             // the tile's units
  std::uint32_t end = 0;
  std::uint32_t* positions = nullptr;  // room for stream.changed; the changed units, ascending
  std::uint8_t* new_units = nullptr;   // room for stream.changed units, each
  std::uint8_t* old_units = nullptr;
  const GapFollowUp* follow_up = nullptr;  // if the tile is intact, called for all its changes, ascending
  // Result. False: the stream is damaged, and what was written means nothing.
  bool intact = false;
};

struct Kernels {
  const char* name;

  // Writes the positions at which old and new differ, ascending; returns how many. `positions` has room for count + 64.
  // REQUIRES: count <= kChunkUnits; unit_bytes is 1, 2, 4 or 8.
  std::uint32_t (*find_changed)(const std::uint8_t* old_units, const std::uint8_t* new_units, std::uint32_t count,
                                int unit_bytes, std::uint16_t* positions);

  // times[k] = sum of the rates of the first 8k units, modulo 2^32, for k = 0 .. ceil(count / 8); returns the sum of
  // all.
  std::uint64_t (*sum_rates)(const std::uint8_t* units, std::uint32_t count, int unit_bytes,
                             const ExpandedTables& tables, std::uint32_t* times);

  // Sums of key * word over words first_word .. first_word + word_count - 1 of one block.
  DigestSums (*digest_words)(const std::uint8_t* data, std::uint32_t first_word, std::uint32_t word_count,
                             const DigestKeys& keys);

  // Sums of changed units of 16 bits, block by block in their order; returns how many blocks, at most one a change.
  // Positions ascend, and the first is that of unit first_unit of block 0.
  // REQUIRES: 0 < count <= kDigestBatch; the last position is less than kDigestReach after the first.
  std::size_t (*digest_u16)(std::uint32_t first_unit, const std::uint32_t* positions, std::size_t count,
                            const std::uint8_t* old_units, const std::uint8_t* new_units, const DigestKeys& keys,
                            ChangedBlock* blocks);

  // Takes apart the changes of a tile of units of 16 bits (TileChange): positions[k] becomes first + its position.
  void (*split_u16)(const std::uint8_t* changes, std::size_t count, std::uint32_t first, std::uint32_t* positions,
                    std::uint8_t* old_units, std::uint8_t* new_units);

  // Decodes tiles, many side by side; it is fastest if those with the same tables follow each other. `times` is scratch
  // memory, room for TimesRoom(of the largest).
  void (*decode_sparse)(std::span<SparseTile> tiles, int unit_bytes, std::uint32_t* times);

  // Decodes tiles of one entry, and follows them up in their order. REQUIRES: their streams were opened (gap_tile.h)
  // for tiles of their sizes.
  void (*decode_gaps)(std::span<GapTile> tiles, int unit_bytes);

  const EncodeKernels* encode;
  const ConvertKernels* convert;
};

// How many tiles are coded side by side, which hides the latency of the long chain of steps of each.
inline constexpr std::size_t kLanes = 32;

// The best for this machine, or the one named by the environment variable WEIGHTWIRE_ISA; an unknown or unsupported
// name is an error that lists the possible ones.
Result<const Kernels*> ChooseKernels();
Result<const Kernels*> KernelsNamed(std::string_view name);
// Every set this machine can run, best first; the last one is "scalar".
std::vector<const Kernels*> AllKernels();

const Kernels* ScalarKernels();

}  // namespace weightwire
