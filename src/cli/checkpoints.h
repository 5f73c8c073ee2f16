// The files that commands read: checkpoints, opened and digested, and deltas.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "cli/compute.h"
#include "codec/digest/digest.h"
#include "codec/format/delta_file.h"
#include "tensor/checkpoint.h"

namespace weightwire {

// Checkpoint::Open, but a checkpoint in the middle of an in-place update is an error that says how to finish it.
Result<Checkpoint> OpenCheckpoint(const std::filesystem::path& path);

// The bytes of all tensors, by the layout.
[[nodiscard]] std::vector<std::span<const std::uint8_t>> TensorBytes(const Checkpoint& checkpoint);

// The digest of every tensor, computed in full, with progress.
std::vector<Digest> DigestInFull(const Checkpoint& checkpoint, const std::string& what, const Compute& compute);

// A delta file and the mapping that holds its bytes.
struct LoadedDelta {
  std::string name;  // for messages
  MappedFile map;
  DeltaFile file;
};

// "-" is standard input. An error names the path.
Result<LoadedDelta> LoadDelta(const std::filesystem::path& path);

// An error if something has that name already: before hours of work, not after.
Status CheckNameIsFree(const std::filesystem::path& output);

}  // namespace weightwire
