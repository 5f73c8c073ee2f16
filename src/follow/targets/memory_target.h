// A target in host memory: the files of a checkpoint as they lie in an anchor, tensors where the files have them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/threads.h"
#include "base/unfilled_vector.h"
#include "codec/decode/write_change.h"
#include "codec/kernels/kernels.h"
#include "follow/targets/target.h"

namespace weightwire {

// Thread safety: one thread at a time.
class MemoryTarget final : public Target {
 public:
  // `kernels` and `pool` must outlive it.
  MemoryTarget(const Kernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  [[nodiscard]] const std::optional<Held>& held() const override { return held_; }
  [[nodiscard]] Result<StateView> View() override;
  Status Apply(const std::shared_ptr<const StagedChange>& change, const Held& after) override;
  Status Undo() override;
  Status Verify() override;
  Result<std::unique_ptr<TargetLoad>> BeginLoad(std::span<const AnchorFile> files) override;

  // The tensors by the layout held. REQUIRES: held().
  [[nodiscard]] const Layout& layout() const { return *state_.layout; }
  [[nodiscard]] const std::shared_ptr<const Layout>& shared_layout() const { return state_.layout; }
  [[nodiscard]] std::span<const std::uint8_t> bytes(std::size_t tensor) const { return state_.tensors[tensor].front(); }
  [[nodiscard]] const std::vector<Digest>& digests() const { return state_.digests; }

 private:
  friend class MemoryLoad;

  struct State {
    std::shared_ptr<const Layout> layout;
    TensorPlaces tensors;
    std::vector<Digest> digests;
    std::vector<std::shared_ptr<UnfilledVector<std::uint8_t>>> storage;
  };

  [[nodiscard]] static StateView ViewOf(const State& state);

  const Kernels& kernels_;
  ThreadPool& pool_;
  std::optional<Held> held_;
  State state_;
  // The last change, and what was held before it.
  std::shared_ptr<const StagedChange> last_change_;
  std::optional<Held> held_before_;
  State state_before_;
};

}  // namespace weightwire
