#include "base/object_hash.h"

#include <algorithm>

namespace weightwire {

Sha256Digest ObjectHash(std::span<const std::uint8_t> bytes) {
  ObjectHasher hasher;
  hasher.Update(bytes);
  return hasher.Finish();
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
