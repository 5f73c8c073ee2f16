#include "base/object_hash.h"

#include <gtest/gtest.h>

#include <vector>

namespace weightwire {
namespace {

std::vector<std::uint8_t> SomeBytes(std::size_t size) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 + (i >> 8));
  return bytes;
}

// By the words of the specification.
Sha256Digest Slowly(const std::vector<std::uint8_t>& bytes) {
  std::vector<std::uint8_t> hashes;
  for (std::size_t at = 0; at < bytes.size(); at += kHashChunkBytes) {
    const std::size_t size = std::min<std::size_t>(kHashChunkBytes, bytes.size() - at);
    const Sha256Digest chunk = Sha256Of(std::span(bytes).subspan(at, size));
    hashes.insert(hashes.end(), chunk.begin(), chunk.end());
  }
  return Sha256Of(hashes);
}

TEST(ObjectHashTest, IsTheHashOfTheHashesOfItsChunks) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{kHashChunkBytes - 1},
                                 std::size_t{kHashChunkBytes}, std::size_t{2 * kHashChunkBytes + 5}}) {
    const auto bytes = SomeBytes(size);
    EXPECT_EQ(ObjectHash(bytes), Slowly(bytes)) << size;
  }
}

TEST(ObjectHashTest, DoesNotDependOnHowTheBytesArrive) {
  const auto bytes = SomeBytes(kHashChunkBytes + 1000);
  for (const std::size_t portion :
       {std::size_t{1000}, std::size_t{kHashChunkBytes}, std::size_t{kHashChunkBytes + 1}}) {
    ObjectHasher hasher;
    for (std::size_t at = 0; at < bytes.size(); at += portion) {
      hasher.Update(std::span(bytes).subspan(at, std::min(portion, bytes.size() - at)));
    }
    EXPECT_EQ(hasher.Finish(), ObjectHash(bytes));
  }
}

TEST(ObjectHashTest, OfNoBytesIsTheSha256OfNoBytes) { EXPECT_EQ(ObjectHash({}), Sha256Of(std::string_view())); }

}  // namespace
}  // namespace weightwire
