// The digest of a tensor's bits (spec/FORMAT.md, "Digest"): two sums of key * word modulo 2^61 - 1 over the tensor's
// little-endian 32-bit words. It is linear, so it is updated in O(changed) and adds up over boxes; the keys depend on
// the position in the full tensor, so nothing can be moved unseen. It finds accidents; against malice stand the SHA-256
// hashes.
//
// Everything here is a pure function or a single-threaded value.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "codec/format/digest_value.h"
#include "codec/format/units.h"
#include "codec/kernels/kernels.h"

namespace weightwire {

// The fixed keys. The first call makes them; they never change.
const DigestKeys& FixedDigestKeys();

// What the bytes at byte_offset .. byte_offset + bytes.size() of a tensor add to its digest.
Digest DigestOfRange(std::span<const std::uint8_t> bytes, std::uint64_t byte_offset, const Kernels& kernels);

// What a list of changed units adds to a tensor's digest. Units must come in ascending order for speed, not for
// correctness.
class DigestOfChanges {
 public:
  explicit DigestOfChanges(const Kernels& kernels) : kernels_(&kernels) {}

  template <typename Unit>
  void Change(std::uint64_t unit_index, Unit old_unit, Unit new_unit) {
    const std::uint64_t byte = unit_index * sizeof(Unit);
    const std::uint64_t block = byte / kDigestBlockBytes;
    if (block != block_) Flush(block);
    const std::size_t word = (byte % kDigestBlockBytes) / 4;
    if constexpr (sizeof(Unit) == 8) {
      Add(word, static_cast<std::int64_t>(new_unit & 0xffffffff) - static_cast<std::int64_t>(old_unit & 0xffffffff));
      Add(word + 1, static_cast<std::int64_t>(new_unit >> 32) - static_cast<std::int64_t>(old_unit >> 32));
    } else {
      const int shift = static_cast<int>(8 * (byte % 4));
      Add(word,
          (static_cast<std::int64_t>(new_unit) - static_cast<std::int64_t>(old_unit)) * (std::int64_t{1} << shift));
    }
  }

  // The same for many changes, whose positions count from first_unit and ascend.
  template <typename Unit>
  void Changes(std::uint64_t first_unit, std::span<const std::uint32_t> positions, const std::uint8_t* old_units,
               const std::uint8_t* new_units) {
    if constexpr (sizeof(Unit) == 2) {
      ChangesOfU16(first_unit, positions, old_units, new_units);
    } else {
      for (std::size_t k = 0; k < positions.size(); ++k) {
        Change<Unit>(first_unit + positions[k], LoadUnit<Unit>(old_units, k), LoadUnit<Unit>(new_units, k));
      }
    }
  }

  [[nodiscard]] Digest Finish() {
    Flush(0);
    AddProducts();
    return digest_;
  }

 private:
  void Add(std::size_t word, std::int64_t difference) {
    sums_[0] += static_cast<__int128>(difference) * keys_->word[0][word];
    sums_[1] += static_cast<__int128>(difference) * keys_->word[1][word];
  }
  void ChangesOfU16(std::uint64_t first_unit, std::span<const std::uint32_t> positions, const std::uint8_t* old_units,
                    const std::uint8_t* new_units);
  void Flush(std::uint64_t next_block);
  void AddProducts();

  // Of block keys and sums, below 2^123 each: so many can be added up before they are reduced.
  static constexpr int kMostProducts = 32;

  const Kernels* kernels_;
  const DigestKeys* keys_ = &FixedDigestKeys();
  std::uint64_t block_ = 0;
  std::array<__int128, 2> sums_{};  // of this block
  std::array<unsigned __int128, 2> products_{};
  int product_count_ = 0;
  Digest digest_;
};

}  // namespace weightwire
