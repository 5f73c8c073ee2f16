#include "base/object_hash.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "base/sha256_pair.h"

namespace weightwire {

Sha256Digest ObjectHash(std::span<const std::uint8_t> bytes) {
  std::vector<Sha256Digest> chunks(HashChunkCount(bytes.size()));
  HashChunks(bytes, chunks);
  return ObjectHashOfChunks(chunks);
}

void HashChunks(std::span<const std::uint8_t> bytes, std::span<Sha256Digest> hashes) {
  WW_CHECK(hashes.size() == HashChunkCount(bytes.size()));
  std::size_t next = 0;
  for (; bytes.size() >= 2 * kHashChunkBytes; bytes = bytes.subspan(2 * kHashChunkBytes), next += 2) {
    std::tie(hashes[next], hashes[next + 1]) =
        Sha256PairOf(bytes.first(kHashChunkBytes), bytes.subspan(kHashChunkBytes, kHashChunkBytes));
  }
  for (; !bytes.empty(); ++next) {
    const std::size_t size = std::min<std::size_t>(bytes.size(), kHashChunkBytes);
    hashes[next] = Sha256Of(bytes.first(size));
    bytes = bytes.subspan(size);
  }
}

Sha256Digest ObjectHashOfChunks(std::span<const Sha256Digest> chunks) {
  Sha256 hash;
  for (const Sha256Digest& chunk : chunks) hash.Update(chunk);
  return hash.Finish();
}

void ObjectHasher::Update(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const std::size_t take = std::min<std::size_t>(bytes.size(), kHashChunkBytes - in_chunk_);
    chunk_.Update(bytes.first(take));
    in_chunk_ += take;
    bytes = bytes.subspan(take);
    if (in_chunk_ == kHashChunkBytes) {
      chunks_.Update(chunk_.Finish());
      chunk_ = Sha256();
      in_chunk_ = 0;
    }
  }
}

Sha256Digest ObjectHasher::Finish() {
  if (in_chunk_ != 0) chunks_.Update(chunk_.Finish());
  return chunks_.Finish();
}

}  // namespace weightwire
