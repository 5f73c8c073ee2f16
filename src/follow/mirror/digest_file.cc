#include "follow/mirror/digest_file.h"

#include <algorithm>
#include <string_view>

#include "base/bytes.h"
#include "codec/digest/state.h"

namespace weightwire {
namespace {

constexpr std::string_view kDigestsMagic = "WWDGST01";

}  // namespace

Status WriteDigests(FileSystem& files, const FileSystem::Path& path, const std::vector<Digest>& digests) {
  std::vector<std::uint8_t> bytes(kDigestsMagic.begin(), kDigestsMagic.end());
  ByteWriter out(bytes);
  out.Varint(digests.size());
  for (const Digest& digest : digests) out.Bytes(digest.ToBytes());
  return WriteDurably(files, path, bytes);
}

std::optional<std::vector<Digest>> ReadDigests(FileSystem& files, const FileSystem::Path& path, const Layout& layout,
                                               const Sha256Digest& state) {
  const auto bytes = files.Read(path, kDigestsMagic.size() + kMaxVarintBytes + layout.size() * kDigestBytes);
  if (!bytes.ok()) return std::nullopt;
  ByteReader in(bytes.value());
  const auto magic = in.Bytes(kDigestsMagic.size());
  if (!magic.ok() || !std::equal(kDigestsMagic.begin(), kDigestsMagic.end(), magic.value().begin()))
    return std::nullopt;
  const auto count = in.Varint();
  if (!count.ok() || count.value() != layout.size()) return std::nullopt;
  std::vector<Digest> digests;
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const auto digest = in.Bytes(kDigestBytes);
    if (!digest.ok()) return std::nullopt;
    digests.push_back(Digest::FromBytes(digest.value().first<kDigestBytes>()));
  }
  if (!in.ExpectEnd().ok() || StateDigest(layout, digests) != state) return std::nullopt;
  return digests;
}

}  // namespace weightwire
