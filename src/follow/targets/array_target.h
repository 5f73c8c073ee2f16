// A target that is somebody else's arrays: a state dict, or whatever holds a model's tensors in host memory.
//
// The arrays hold one version. They change only in Apply, in Undo, and when a load is committed. An anchor is loaded
// beside them, into memory of its own.
//
// The arrays' owner must not write to them, except through the target. Verify detects such writes; the follower calls
// it at every update, unless the options say otherwise. Apply and Undo compare the elements that they are about to
// change, and write nothing if one differs. After any of these has failed the arrays hold no version.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "codec/decode/write_change.h"
#include "codec/kernels/kernels.h"
#include "follow/targets/memory_target.h"
#include "follow/targets/target.h"
#include "tensor/tensor_spec.h"

namespace weightwire {

struct TargetArray {
  TensorSpec spec;
  std::span<std::uint8_t> bytes;  // as many as the spec says
};

struct ArrayTargetOptions {
  // Digest all arrays whenever an update is staged. Without it, an update finds foreign writes only in the elements
  // that it changes.
  bool verify_base = true;
};

class ArrayTarget final : public Target {
 public:
  // Holds nothing yet. Of tied weights, arrays may have one name or several, in the same memory or not. `kernels` and
  // `pool` must outlive it. kInvalidArgument when a name occurs twice, or an array is not of the size its shape says.
  static Result<std::unique_ptr<ArrayTarget>> Make(std::vector<TargetArray> arrays, const Kernels& kernels,
                                                   ThreadPool& pool, const ArrayTargetOptions& options = {});

  // The state digest of what the arrays hold, seen as this layout; kMismatch when they are not of this layout.
  Result<Sha256Digest> DigestAs(const Layout& layout);
  // They hold that version. kMismatch when their digest says otherwise. REQUIRES: not held().
  Status Adopt(const Held& held, const Layout& layout);

  [[nodiscard]] const std::optional<Held>& held() const override { return state_.held; }
  [[nodiscard]] Result<StateView> View() override;
  // kMismatch, and nothing is written, when the arrays are not of the layout of `after`. So does a load's Commit.
  Status Apply(const std::shared_ptr<const StagedChange>& change, const Held& after) override;
  // Takes back a load too, unless it was the first.
  Status Undo() override;
  Status Verify() override;
  [[nodiscard]] bool verifies_base() const override { return options_.verify_base; }
  Result<std::unique_ptr<TargetLoad>> BeginLoad(std::span<const AnchorFile> files) override;

 private:
  friend class ArrayLoad;
  using Places = TensorPlaces;

  struct State {
    std::optional<Held> held;
    std::shared_ptr<const Layout> layout;
    std::vector<Digest> digests;
  };

  ArrayTarget(const Kernels& kernels, ThreadPool& pool, const ArrayTargetOptions& options)
      : kernels_(kernels), pool_(pool), options_(options) {}
  // Where the tensors of a layout are to be written; every array must be a tensor of it, and every tensor have one.
  [[nodiscard]] Result<Places> Match(const Layout& layout) const;
  // Copies everything that `loaded` holds, which is version `held`.
  Status CopyFrom(const MemoryTarget& loaded, const Held& held);
  // Also whether all copies of a tied tensor are the same.
  [[nodiscard]] Result<std::vector<Digest>> DigestsAs(const Layout& layout, const Places& places) const;

  // Something else has written to the arrays: from now on they hold no version.
  Error Lose(const std::string& where);

  const Kernels& kernels_;
  ThreadPool& pool_;
  const ArrayTargetOptions options_;
  std::map<std::string, TargetArray> arrays_;

  State state_;  // what the arrays hold
  Places places_;

  // For Undo: the last change, or what the arrays held before the last load, tensor by tensor.
  State before_;
  std::shared_ptr<const StagedChange> last_change_;
  std::vector<std::vector<std::uint8_t>> bits_before_;
};

}  // namespace weightwire
