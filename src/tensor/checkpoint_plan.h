// Which files a checkpoint is written as: their names, and the tensors of each, before any data is moved. What writes
// them (checkpoint_writer.h to a disk, others to a store) gets the same bytes from the same plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/checkpoint.h"
#include "tensor/layout.h"
#include "tensor/policy.h"

namespace weightwire {

// A file to be written: its tensors under the names they get, with where each one's data comes from.
struct PlannedFile {
  std::string name;
  Metadata metadata;
  std::vector<TensorSpec> specs;     // in the order of the data
  std::vector<std::size_t> sources;  // indices in the layout, one per spec

  // The file's first bytes, up to the data.
  [[nodiscard]] Result<std::vector<std::uint8_t>> Header() const { return SafetensorsHeader(specs, metadata); }
};

using CheckpointPlan = std::vector<PlannedFile>;

struct CheckpointOptions {
  // A shard is closed before the tensor that would make it larger; a tensor above this has a shard of its own.
  std::uint64_t max_shard_bytes = kMaxShardBytes;
  // transformers does not load a file without "format".
  Metadata metadata = {{"format", "pt"}};
  // The tensors are an adapter's: all in adapter_model.safetensors, where PEFT looks for them.
  bool adapter = false;
};

// The files of `like`, with what differs in `layout` put where WriteCheckpointLike (checkpoint_writer.h) says.
[[nodiscard]] CheckpointPlan PlanLike(const Checkpoint& like, const Layout& layout);

// model.safetensors (or an adapter's file), or shards named model-00001-of-0000N.safetensors in order of the layout.
[[nodiscard]] CheckpointPlan PlanFresh(const Layout& layout, const CheckpointOptions& options);

// The text of model.safetensors.index.json for these files.
[[nodiscard]] std::string IndexText(const CheckpointPlan& plan);

}  // namespace weightwire
