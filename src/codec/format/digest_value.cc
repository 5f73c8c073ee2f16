#include "codec/format/digest_value.h"

#include "base/bytes.h"
#include "base/sha256.h"

namespace weightwire {
namespace {

std::uint64_t AddModulo(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t sum = a + b;
  const std::uint64_t folded = (sum & kDigestPrime) + (sum >> 61);
  return folded >= kDigestPrime ? folded - kDigestPrime : folded;
}

}  // namespace

Digest Digest::operator+(const Digest& other) const {
  return {{AddModulo(sums[0], other.sums[0]), AddModulo(sums[1], other.sums[1])}};
}

Digest Digest::operator-(const Digest& other) const {
  return {{AddModulo(sums[0], kDigestPrime - other.sums[0]), AddModulo(sums[1], kDigestPrime - other.sums[1])}};
}

std::array<std::uint8_t, kDigestBytes> Digest::ToBytes() const {
  std::array<std::uint8_t, kDigestBytes> bytes;
  StoreU64(bytes.data(), sums[0]);
  StoreU64(bytes.data() + 8, sums[1]);
  return bytes;
}

Digest Digest::FromBytes(std::span<const std::uint8_t, kDigestBytes> bytes) {
  return {{LoadU64(bytes.data()), LoadU64(bytes.data() + 8)}};
}

std::string Digest::ToHex() const { return weightwire::ToHex(ToBytes()); }

}  // namespace weightwire
