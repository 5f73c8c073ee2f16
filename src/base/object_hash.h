// The object hash: the SHA-256 over the SHA-256s of an object's chunks of 4 MiB (spec/PROTOCOL.md, "JSON"). It can be
// computed by several threads and checked chunk by chunk while an object is still on its way.
#pragma once

#include <cstdint>
#include <span>

#include "base/sha256.h"

namespace weightwire {

inline constexpr std::uint64_t kHashChunkBytes = std::uint64_t{4} << 20;

[[nodiscard]] Sha256Digest ObjectHash(std::span<const std::uint8_t> bytes);
[[nodiscard]] constexpr std::uint64_t HashChunkCount(std::uint64_t size_bytes) {
  return (size_bytes + kHashChunkBytes - 1) / kHashChunkBytes;
}
// The hashes of the chunks of `bytes`, which begin where a chunk does; fastest for two chunks or more at a time.
// REQUIRES: as many hashes as there are chunks.
void HashChunks(std::span<const std::uint8_t> bytes, std::span<Sha256Digest> hashes);
// From the hashes of the chunks, in order.
[[nodiscard]] Sha256Digest ObjectHashOfChunks(std::span<const Sha256Digest> chunks);

// The object hash of bytes that come in order, in portions of any size. One thread at a time.
class ObjectHasher {
 public:
  void Update(std::span<const std::uint8_t> bytes);
  // The object is spent afterwards.
  [[nodiscard]] Sha256Digest Finish();

 private:
  Sha256 chunks_;
  Sha256 chunk_;
  std::uint64_t in_chunk_ = 0;
};

}  // namespace weightwire
