// How staged changes come into being: only the decoder and folding use this, after all checks.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "codec/decode/staged_change.h"
#include "codec/digest/state.h"

namespace weightwire {

// The same changes in stretches that do not overlap, ascending. They may come in any order and interleave, as the
// columns of a matrix do that several ranks share, but no unit may change twice.
std::vector<StagedChunk> InOrder(std::vector<StagedChunk> chunks, std::size_t unit_bytes);

class StagedChangeBuilder {
 public:
  StagedChangeBuilder(std::shared_ptr<const Layout> before, std::shared_ptr<const Layout> after,
                      std::vector<Digest> digests_before) {
    change_.layout_before_ = std::move(before);
    change_.layout_after_ = std::move(after);
    change_.digests_before_ = std::move(digests_before);
  }

  // Tensors in ascending order; a tensor's chunks ascending, without overlap, and not empty.
  void AddChanged(std::size_t tensor, int unit_bytes, std::vector<StagedChunk> chunks) {
    StagedTensor staged;
    staged.tensor_ = tensor;
    staged.unit_bytes_ = unit_bytes;
    for (const StagedChunk& chunk : chunks) staged.changed_ += chunk.offsets.size();
    staged.chunks_ = std::move(chunks);
    change_.tensors_.push_back(std::move(staged));
  }

  void AddNew(std::size_t tensor, int unit_bytes, UnfilledVector<std::uint8_t> bytes) {
    StagedTensor staged;
    staged.tensor_ = tensor;
    staged.unit_bytes_ = unit_bytes;
    staged.is_new_ = true;
    staged.changed_ = bytes.size() / static_cast<std::size_t>(unit_bytes);
    staged.new_bytes_ = std::move(bytes);
    change_.tensors_.push_back(std::move(staged));
  }

  StagedChange Finish(std::vector<Digest> digests_after) {
    change_.digests_after_ = std::move(digests_after);
    // Computed here, once, because a target compares it while an engine waits, and tied weights make it slow.
    change_.state_before_ = StateDigest(*change_.layout_before_, change_.digests_before_);
    change_.state_after_ = StateDigest(*change_.layout_after_, change_.digests_after_);
    return std::move(change_);
  }

 private:
  StagedChange change_;
};

}  // namespace weightwire
