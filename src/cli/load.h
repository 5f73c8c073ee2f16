// What every command begins with: checkpoints opened and digested, delta files read, kernels and threads chosen.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "base/threads.h"
#include "codec/digest/digest.h"
#include "codec/format/delta_file.h"
#include "codec/kernels/kernels.h"
#include "tensor/checkpoint.h"

namespace weightwire {

// What computes: the kernels for this machine (or WEIGHTWIRE_ISA) and the threads.
struct Machine {
  const Kernels* kernels;
  std::unique_ptr<ThreadPool> pool;

  // `threads` 0: as many as the machine has.
  static Result<Machine> Make(std::size_t threads);
};

// Checkpoint::Open, but a checkpoint in the middle of an in-place update is an error that says how to finish it.
Result<Checkpoint> OpenCheckpoint(const std::filesystem::path& path);

// The bytes of all tensors, by the layout.
[[nodiscard]] std::vector<std::span<const std::uint8_t>> TensorBytes(const Checkpoint& checkpoint);

// The digest of every tensor, computed in full, with progress.
std::vector<Digest> DigestInFull(const Checkpoint& checkpoint, const std::string& what, const Machine& machine);

// A delta file and the mapping its bytes lie in.
struct LoadedDelta {
  MappedFile map;
  DeltaFile file;
};

// The error names the path.
Result<LoadedDelta> LoadDelta(const std::filesystem::path& path);

// An error if something has that name already: before hours of work, not after.
Status CheckNameIsFree(const std::filesystem::path& output);

}  // namespace weightwire
