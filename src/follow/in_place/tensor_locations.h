// Finds the tensors of a layout in the files of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "tensor/checkpoint.h"
#include "tensor/layout.h"

namespace weightwire {

// A tensor that files hold under both names of a tie has two locations.
struct TensorLocation {
  std::size_t file = 0;  // in Checkpoint::files()
  std::uint64_t offset = 0;
  std::size_t tensor = 0;  // in the layout

  bool operator==(const TensorLocation&) const = default;
};

// Returns all locations of the layout's tensors, in the order of the files. kMismatch for a name that the layout does
// not have.
Result<std::vector<TensorLocation>> LocationsIn(std::span<const CheckpointFile> files, const Layout& layout);

}  // namespace weightwire
