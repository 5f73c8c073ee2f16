// A rank's piece of an anchor: its shards, one after another in one object, with the places where they belong in the
// files of the anchor's directory (spec/PROTOCOL.md, "Anchors"). No rank needs the shards of another.
//
// A step function, as AnchorWriter is. What is sent is digested on the way; whoever puts the anchor together adds the
// digests of all pieces up.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "codec/digest/digest.h"
#include "codec/kernels/kernels.h"
#include "log/anchor.h"
#include "log/run.h"
#include "publish/anchor_source.h"
#include "publish/contribution.h"
#include "publish/shards.h"
#include "store/object_sender.h"
#include "tensor/checkpoint_plan.h"

namespace weightwire {

// The files of weights that the pieces make up, the same for all ranks of a layout.
struct AssembledPlan {
  CheckpointPlan plan;
  std::vector<AssembledFile> files;
  std::vector<std::vector<std::uint8_t>> headers;  // the first bytes of each file
  struct Start {
    std::size_t file = 0;
    std::uint64_t at = 0;
  };
  std::vector<Start> tensors;  // where each tensor of the layout begins
};
Result<AssembledPlan> PlanAssembled(const Layout& whole, const CheckpointOptions& options);

// The piece of a rank, by name, and where its bytes belong. The piece of rank 0 begins with the files' headers.
[[nodiscard]] std::string PieceName(std::uint64_t rank);
[[nodiscard]] std::vector<Place> PiecePlaces(std::uint64_t rank, const Shards& shards, const AssembledPlan& plan);

class PieceWriter final : public AnchorShare {
 public:
  // `source` has the rank's own layout. `kernels` must outlive it.
  PieceWriter(Run run, AnchorName anchor, std::uint64_t rank, std::shared_ptr<const Shards> shards,
              std::shared_ptr<AnchorSource> source, CheckpointOptions options, const Kernels& kernels);

  Result<bool> Step() override;

  // REQUIRES: complete. None if the rank has nothing of the state.
  [[nodiscard]] const std::optional<SentPiece>& piece() const { return piece_; }
  // What the shards that were sent add to the digests of their tensors. REQUIRES: complete.
  [[nodiscard]] const std::vector<Digest>& digests() const { return digests_; }

 private:
  Result<bool> TryStep();
  Status Begin();
  void AddDigest(std::size_t shard, std::uint64_t at, std::span<const std::uint8_t> bytes);

  const Run run_;
  const AnchorName anchor_;
  const std::uint64_t rank_;
  const std::shared_ptr<const Shards> shards_;
  const std::shared_ptr<AnchorSource> source_;
  const CheckpointOptions options_;
  const Kernels& kernels_;

  std::optional<ObjectSender> sender_;
  std::optional<FileBytes> bytes_;
  std::vector<Digest> digests_;
  bool complete_ = false;
  std::optional<SentPiece> piece_;
};

}  // namespace weightwire
