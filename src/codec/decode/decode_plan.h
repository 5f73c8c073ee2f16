// What a delta is to do to a base, entry by entry: checked as far as it can be before a tile is decoded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "codec/decode/state_view.h"
#include "codec/format/box.h"
#include "codec/format/delta_file.h"
#include "codec/format/tables.h"
#include "codec/kernels/kernels.h"
#include "tensor/layout.h"

namespace weightwire {

struct DecodeEntry {
  const IndexEntry* index = nullptr;
  std::span<const std::uint8_t> payload;
  std::optional<BoxMap> map;
  std::size_t origin = 0;  // in the layout before
  bool is_new = false;     // the base has no such tensor
  std::shared_ptr<const ExpandedTables> tables;
  std::vector<std::uint64_t> tile_offsets;  // in the payload
};

// Points into the parts it was made of.
struct DecodePlan {
  std::shared_ptr<const Layout> after;
  std::vector<DecodeEntry> entries;  // by tensor

  [[nodiscard]] const TensorSpec& SpecOf(const DecodeEntry& entry) const {
    return after->tensors()[entry.index->tensor];
  }
};

// The parts fit together and apply to the base, whose digests are known: no tensor is there twice, no boxes overlap, no
// new tensor lacks its data, and what is to be changed has the bits that the delta was made for.
Result<DecodePlan> PlanDecoding(std::span<const DeltaFile> parts, const std::optional<StateDigests>& promised,
                                const StateView& base, const Kernels& kernels);

// The base's tensor that a tensor of the layout after continues.
[[nodiscard]] inline std::optional<std::size_t> OriginOf(std::size_t tensor, const Layout& after,
                                                         const Layout& before) {
  return &after == &before ? tensor : before.FindSame(after.tensors()[tensor]);
}

[[nodiscard]] Error DamagedDelta(const std::string& what);
[[nodiscard]] Error MadeForAnotherBase(const std::string& what);

}  // namespace weightwire
