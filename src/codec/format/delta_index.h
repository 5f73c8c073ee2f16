// The index of a delta file: what it applies to and, for each box of a tensor it touches, how that is coded and which
// digests it has before and after (spec/FORMAT.md, "Index"). Plain data; Read checks everything that can be checked
// without the base.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/sha256.h"
#include "codec/format/box.h"
#include "codec/format/digest_value.h"
#include "codec/format/format.h"
#include "tensor/layout.h"

namespace weightwire {

struct IndexEntry {
  std::size_t tensor = 0;  // in the layout after the change
  EntryMode mode = EntryMode::kWhole;
  std::optional<Box> box;  // the whole tensor if none
  // Sparse and dense.
  std::size_t table_set = 0;
  int scale = 0;  // sparse only
  // All but whole.
  int tile_log2 = kMinTileLog2;
  std::uint64_t changed = 0;
  std::vector<std::uint32_t> tile_bytes;  // the length of each tile's stream
  // Whole.
  std::uint64_t whole_bytes = 0;
  // All.
  Digest before;
  Digest after;

  [[nodiscard]] std::uint64_t PayloadBytes() const;
};

// What happens to the layout, when it changes.
struct LayoutChange {
  Sha256Digest after_hash{};
  std::vector<std::size_t> removed;  // in the layout before, ascending
  std::vector<TensorSpec> added;     // by name, ascending
  Aliases aliases;                   // of the layout after

  friend bool operator==(const LayoutChange&, const LayoutChange&) = default;
};

struct StateDigests {
  Sha256Digest before{};
  Sha256Digest after{};
};

struct DeltaIndex {
  Sha256Digest layout_hash{};         // of the layout before
  Aliases aliases;                    // of the layout before
  std::optional<StateDigests> state;  // in a file that is a whole delta, not a part among several
  std::optional<LayoutChange> layout_change;
  std::vector<IndexEntry> entries;  // by tensor, ascending

  // Everything but the file's hash, which stands before it.
  void Write(ByteWriter& out) const;
  // The entries must use up the payload to its last byte.
  static Result<DeltaIndex> Read(ByteReader& in, std::uint64_t payload_bytes);
};

// The layout after the change. An error when the change does not fit the layout, or the hash is not the promised one.
Result<Layout> ApplyLayoutChange(const Layout& before, const std::optional<LayoutChange>& change);

// What turns one layout into another.
LayoutChange CompareLayouts(const Layout& before, const Layout& after);

}  // namespace weightwire
