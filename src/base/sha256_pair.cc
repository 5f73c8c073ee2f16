#include "base/sha256_pair.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace weightwire {
namespace {

#if defined(__x86_64__)

constexpr std::size_t kBlockBytes = 64;
constexpr std::size_t kLengthBytes = 8;

// FIPS 180-4, 4.2.2: four rounds' constants to a vector.
alignas(16) constexpr std::array<std::uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

bool HasShaInstructions() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned kShaBit = 1U << 29;
  constexpr unsigned kSsse3AndSse41Bits = 1U << 9 | 1U << 19;
  const bool sha = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kShaBit) != 0;
  return sha && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & kSsse3AndSse41Bits) == kSsse3AndSse41Bits;
}

// The eight words of a hash, in the order the instructions want them: A B E F and C D G H, highest first.
struct HashState {
  __m128i abef;
  __m128i cdgh;
};

#define WW_SHA __attribute__((target("sha,sse4.1"), always_inline)) static inline

WW_SHA HashState InitialState() {
  return {_mm_set_epi32(0x6a09e667, static_cast<int>(0xbb67ae85), 0x510e527f, static_cast<int>(0x9b05688c)),
          _mm_set_epi32(0x3c6ef372, static_cast<int>(0xa54ff53a), 0x1f83d9ab, 0x5be0cd19)};
}

WW_SHA __m128i LoadWords(const std::uint8_t* bytes) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  return _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)), big_endian);
}

// Four rounds with the four words `words`, which have been made from the message already.
WW_SHA void FourRounds(HashState& state, __m128i words, __m128i constants) {
  const __m128i sum = _mm_add_epi32(words, constants);
  state.cdgh = _mm_sha256rnds2_epu32(state.cdgh, state.abef, sum);
  state.abef = _mm_sha256rnds2_epu32(state.abef, state.cdgh, _mm_shuffle_epi32(sum, 0x0e));
}

// The next four words of the message schedule from the sixteen before, oldest first; they take the oldest ones' place.
WW_SHA void NextWords(__m128i& w0, __m128i w1, __m128i w2, __m128i w3) {
  const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8(w3, w2, 4));
  w0 = _mm_sha256msg2_epu32(sum, w3);
}

// Takes `blocks` blocks of each message into its hash, the rounds of both in turn.
__attribute__((target("sha,sse4.1"))) void TakeBlocks(HashState& first, HashState& second, const std::uint8_t* a,
                                                      const std::uint8_t* b, std::size_t blocks) {
  HashState x = first;
  HashState y = second;
  for (; blocks > 0; --blocks, a += kBlockBytes, b += kBlockBytes) {
    const HashState x_before = x;
    const HashState y_before = y;
    // std::array would drop the vectors' alignment, and g++ warns of it.
    __m128i u[] = {LoadWords(a), LoadWords(a + 16), LoadWords(a + 32), LoadWords(a + 48)};
    __m128i v[] = {LoadWords(b), LoadWords(b + 16), LoadWords(b + 32), LoadWords(b + 48)};
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; ++i) {
      const __m128i constants = _mm_load_si128(reinterpret_cast<const __m128i*>(kRounds.data() + 4 * i));
      FourRounds(x, u[i % 4], constants);
      FourRounds(y, v[i % 4], constants);
      if (i < 12) {
        NextWords(u[i % 4], u[(i + 1) % 4], u[(i + 2) % 4], u[(i + 3) % 4]);
        NextWords(v[i % 4], v[(i + 1) % 4], v[(i + 2) % 4], v[(i + 3) % 4]);
      }
    }
    x = {_mm_add_epi32(x.abef, x_before.abef), _mm_add_epi32(x.cdgh, x_before.cdgh)};
    y = {_mm_add_epi32(y.abef, y_before.abef), _mm_add_epi32(y.cdgh, y_before.cdgh)};
  }
  first = x;
  second = y;
}

__attribute__((target("sha,sse4.1"))) Sha256Digest DigestOf(const HashState& state) {
  alignas(16) std::array<std::uint32_t, 4> abef;
  alignas(16) std::array<std::uint32_t, 4> cdgh;
  _mm_store_si128(reinterpret_cast<__m128i*>(abef.data()), state.abef);
  _mm_store_si128(reinterpret_cast<__m128i*>(cdgh.data()), state.cdgh);
  const std::array<std::uint32_t, 8> words = {abef[3], abef[2], cdgh[3], cdgh[2], abef[1], abef[0], cdgh[1], cdgh[0]};
  Sha256Digest digest;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::uint32_t big_endian = __builtin_bswap32(words[i]);
    std::memcpy(digest.data() + 4 * i, &big_endian, sizeof(big_endian));
  }
  return digest;
}

// A message's end: what is left after its whole blocks, a one, zeros, and its length in bits (FIPS 180-4, 5.1.1).
struct Tail {
  std::array<std::uint8_t, 2 * kBlockBytes> bytes{};
  std::size_t blocks = 0;
};

Tail TailOf(std::span<const std::uint8_t> message) {
  const std::size_t left = message.size() % kBlockBytes;
  Tail tail;
  std::copy_n(message.data() + (message.size() - left), left, tail.bytes.data());
  tail.bytes[left] = 0x80;
  tail.blocks = left + 1 + kLengthBytes <= kBlockBytes ? 1 : 2;
  const std::uint64_t bits = __builtin_bswap64(std::uint64_t{message.size()} * 8);
  std::memcpy(tail.bytes.data() + tail.blocks * kBlockBytes - kLengthBytes, &bits, sizeof(bits));
  return tail;
}

__attribute__((target("sha,sse4.1"))) std::pair<Sha256Digest, Sha256Digest> PairByInstructions(
    std::span<const std::uint8_t> first, std::span<const std::uint8_t> second) {
  HashState x = InitialState();
  HashState y = InitialState();
  TakeBlocks(x, y, first.data(), second.data(), first.size() / kBlockBytes);
  const Tail first_tail = TailOf(first);
  const Tail second_tail = TailOf(second);
  TakeBlocks(x, y, first_tail.bytes.data(), second_tail.bytes.data(), first_tail.blocks);
  return {DigestOf(x), DigestOf(y)};
}

#undef WW_SHA

#endif

}  // namespace

std::pair<Sha256Digest, Sha256Digest> Sha256PairOf(std::span<const std::uint8_t> first,
                                                   std::span<const std::uint8_t> second) {
  WW_CHECK(first.size() == second.size());
#if defined(__x86_64__)
  static const bool kHasInstructions = HasShaInstructions();
  if (kHasInstructions) return PairByInstructions(first, second);
#endif
  return {Sha256Of(first), Sha256Of(second)};
}

}  // namespace weightwire
