#include "codec/digest/state.h"

#include <algorithm>

namespace weightwire {

namespace {
// Ranges handed to threads: a multiple of the digest's blocks.
constexpr std::size_t kRangeBytes = 4 << 20;
}  // namespace

Sha256Digest StateDigest(const Layout& layout, std::span<const Digest> digests) {
  WW_CHECK(digests.size() == layout.size());
  Sha256 hash;
  if (layout.aliases().empty()) {
    hash.Update(layout.hash());
  } else {
    const Result<Layout> plain = Layout::Make(layout.tensors(), {});
    WW_CHECK(plain.ok());
    hash.Update(plain.value().hash());
  }
  for (const Digest& digest : digests) hash.Update(digest.ToBytes());
  return hash.Finish();
}

std::vector<Digest> DigestTensors(std::span<const std::span<const std::uint8_t>> tensors, const Kernels& kernels,
                                  ThreadPool& pool) {
  struct Range {
    std::size_t tensor;
    std::size_t offset;
  };
  std::vector<Range> ranges;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (std::size_t offset = 0; offset < tensors[t].size(); offset += kRangeBytes) ranges.push_back({t, offset});
  }
  std::vector<Digest> of_ranges(ranges.size());
  pool.ParallelFor(ranges.size(), [&](std::size_t i, std::size_t) {
    const auto bytes = tensors[ranges[i].tensor].subspan(ranges[i].offset);
    of_ranges[i] = DigestOfRange(bytes.first(std::min(bytes.size(), kRangeBytes)), ranges[i].offset, kernels);
  });
  std::vector<Digest> digests(tensors.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) digests[ranges[i].tensor] += of_ranges[i];
  return digests;
}

}  // namespace weightwire
