#include "codec/digest/digest.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/sha256.h"

namespace weightwire {

namespace {

constexpr std::array<std::uint64_t, 2> kSumSeeds = {0x77656967'68740000, 0x77697265'00000000};  // "weight", "wire"
constexpr std::uint64_t kBlockSeedOffset = std::uint64_t{1} << 32;

// SplitMix64's output function at step n of the sequence started by `seed`.
constexpr std::uint64_t SplitMix(std::uint64_t seed, std::uint64_t n) {
  std::uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

constexpr std::uint64_t Reduce(std::uint64_t value) {
  const std::uint64_t folded = (value & kDigestPrime) + (value >> 61);
  return folded >= kDigestPrime ? folded - kDigestPrime : folded;
}

std::uint64_t MultiplyModulo(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return Reduce((static_cast<std::uint64_t>(product) & kDigestPrime) + static_cast<std::uint64_t>(product >> 61));
}

std::uint64_t AddModulo(std::uint64_t a, std::uint64_t b) { return Reduce(a + b); }

// A block has at most 2^12 changes of at most 2^33 * 2^29 each, so the sum lies within ±2^74. A multiple of the modulus
// makes it positive, without a branch that would be wrong half of the time. The result is below 2^62, not reduced to
// the end.
std::uint64_t FoldSigned(__int128 sum) {
  const auto size = static_cast<unsigned __int128>(sum + (static_cast<__int128>(kDigestPrime) << 14));
  return (static_cast<std::uint64_t>(size) & kDigestPrime) + static_cast<std::uint64_t>(size >> 61);
}

std::uint64_t ReduceLong(unsigned __int128 value) {
  const unsigned __int128 folded = (value & kDigestPrime) + (value >> 61);  // below 2^68
  return Reduce((static_cast<std::uint64_t>(folded) & kDigestPrime) + static_cast<std::uint64_t>(folded >> 61));
}

inline std::uint64_t BlockKey(int s, std::uint64_t block) {
  const std::uint64_t key = SplitMix(kSumSeeds[s] + kBlockSeedOffset, block) >> 3;
  return key == 0 || key == kDigestPrime ? 1 : key;
}

}  // namespace

const DigestKeys& FixedDigestKeys() {
  static const DigestKeys kKeys = [] {
    DigestKeys keys;
    for (int s = 0; s < 2; ++s) {
      for (std::uint64_t j = 0; j < kDigestBlockWords; ++j) {
        // 29 bits, never 0.
        keys.word[s][j] = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(SplitMix(kSumSeeds[s], j) >> 35));
        keys.pair[j][s] = keys.word[s][j];
      }
    }
    return keys;
  }();
  return kKeys;
}

Digest DigestOfRange(std::span<const std::uint8_t> bytes, std::uint64_t byte_offset, const Kernels& kernels) {
  const DigestKeys& keys = FixedDigestKeys();
  Digest digest;
  while (!bytes.empty()) {
    const std::uint64_t block = byte_offset / kDigestBlockBytes;
    const auto begin = static_cast<std::uint32_t>(byte_offset % kDigestBlockBytes);
    const std::size_t size = std::min<std::size_t>(bytes.size(), kDigestBlockBytes - begin);
    DigestSums sums{};
    const auto add = [&](const std::uint8_t* data, std::uint32_t first_word, std::uint32_t word_count) {
      const DigestSums more = kernels.digest_words(data, first_word, word_count, keys);
      for (int s = 0; s < 2; ++s) sums.sums[s] = Reduce(sums.sums[s] + Reduce(more.sums[s]));
    };
    // Whole words straight from memory; an incomplete word at either end on its own, padded with zeros.
    std::size_t done = 0;
    while (done < size) {
      const std::size_t at = begin + done;
      const std::size_t in_word = at % 4;
      if (in_word == 0 && size - done >= 4) {
        const std::size_t words = (size - done) / 4;
        add(bytes.data() + done, static_cast<std::uint32_t>(at / 4), static_cast<std::uint32_t>(words));
        done += 4 * words;
      } else {
        std::array<std::uint8_t, 4> word{};
        const std::size_t count = std::min(4 - in_word, size - done);
        std::memcpy(word.data() + in_word, bytes.data() + done, count);
        add(word.data(), static_cast<std::uint32_t>(at / 4), 1);
        done += count;
      }
    }
    for (int s = 0; s < 2; ++s) {
      digest.sums[s] = AddModulo(digest.sums[s], MultiplyModulo(BlockKey(s, block), sums.sums[s]));
    }
    bytes = bytes.subspan(size);
    byte_offset += size;
  }
  return digest;
}

void DigestOfChanges::ChangesOfU16(std::uint64_t first_unit, std::span<const std::uint32_t> positions,
                                   const std::uint8_t* old_units, const std::uint8_t* new_units) {
  constexpr std::uint64_t kBlockUnits = std::uint64_t{1} << kDigestBlockU16Log2;
  std::array<ChangedBlock, kDigestBatch> blocks;
  for (std::size_t done = 0; done < positions.size();) {
    std::span<const std::uint32_t> batch = positions.subspan(done);
    batch = batch.first(std::min(batch.size(), kDigestBatch));
    if (batch.back() - batch.front() >= kDigestReach) batch = batch.first(1);
    const std::uint64_t unit = first_unit + batch.front();
    const std::size_t block_count =
        kernels_->digest_u16(static_cast<std::uint32_t>(unit % kBlockUnits), batch.data(), batch.size(),
                             old_units + 2 * done, new_units + 2 * done, *keys_, blocks.data());
    for (const ChangedBlock& sums : std::span(blocks).first(block_count)) {
      const std::uint64_t block = unit / kBlockUnits + sums.block;
      if (block != block_) Flush(block);
      for (std::size_t s = 0; s < 2; ++s) {
        // The upper half of a word counts 2^16 times as much.
        sums_[s] += sums.all[s] + static_cast<__int128>((1 << 16) - 1) * sums.odd[s];
      }
    }
    done += batch.size();
  }
}

void DigestOfChanges::Flush(std::uint64_t next_block) {
  for (int s = 0; s < 2; ++s) {
    products_[s] += static_cast<unsigned __int128>(BlockKey(s, block_)) * FoldSigned(sums_[s]);
    sums_[s] = 0;
  }
  block_ = next_block;
  if (++product_count_ == kMostProducts) AddProducts();
}

void DigestOfChanges::AddProducts() {
  for (int s = 0; s < 2; ++s) {
    digest_.sums[s] = AddModulo(digest_.sums[s], ReduceLong(products_[s]));
    products_[s] = 0;
  }
  product_count_ = 0;
}

}  // namespace weightwire
