// A state seen through staged changes: the bits a target will hold once they are written, without touching it.
//
// Immutable; safe to share between threads. The target's memory and the changes must outlive it and stay as they are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "codec/decode/staged_change.h"
#include "codec/digest/digest.h"
#include "codec/kernels/overlay.h"
#include "tensor/layout.h"

namespace weightwire {

class StateView {
 public:
  // The tensors' bytes by the layout, and their digests, which the caller vouches for: computed in full, or carried
  // forward from a state for which they were.
  StateView(std::shared_ptr<const Layout> layout, std::vector<std::span<const std::uint8_t>> tensors,
            std::vector<Digest> digests);

  // The same state after one more change. REQUIRES: the change begins at this state. A view that is given up for it
  // costs no more than the change has tensors, as long as the layout stays.
  [[nodiscard]] StateView After(std::shared_ptr<const StagedChange> change) const&;
  [[nodiscard]] StateView After(std::shared_ptr<const StagedChange> change) &&;

  [[nodiscard]] const Layout& layout() const { return *layout_; }
  [[nodiscard]] const std::shared_ptr<const Layout>& shared_layout() const { return layout_; }
  [[nodiscard]] const std::vector<Digest>& digests() const { return digests_; }

  // The bytes of units [first, first + count) of a tensor: where they lie if nothing is staged for it, otherwise a copy
  // in `scratch` with the changes made. An empty scratch grows as needed.
  std::span<const std::uint8_t> Units(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                      std::vector<std::uint8_t>& scratch) const;
  // The whole tensor in place, or an empty span if something is staged for it.
  [[nodiscard]] std::span<const std::uint8_t> InPlace(std::size_t tensor) const;
  // The whole tensor without the changes that are staged for it, if any, and these for units [first, first + count),
  // added to `lists`.
  [[nodiscard]] std::span<const std::uint8_t> Below(std::size_t tensor) const { return tensors_[tensor].bytes; }
  void AddOverlay(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                  std::vector<OverlaidUnits>& lists) const;

 private:
  struct Tensor {
    std::span<const std::uint8_t> bytes;       // of the target, or of a new tensor in a staged change
    std::vector<const StagedTensor*> changes;  // over it, oldest first
  };

  std::shared_ptr<const Layout> layout_;
  std::vector<Tensor> tensors_;
  std::vector<Digest> digests_;
  std::vector<std::shared_ptr<const StagedChange>> kept_;  // keeps what `tensors_` points to
};

}  // namespace weightwire
