// Writes a staged change to tensors in memory, or undoes it, and checks before that whether it fits. Uses all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/threads.h"
#include "codec/decode/staged_change.h"

namespace weightwire {

// The memory of each tensor of a layout. Tied weights may have several copies.
using TensorPlaces = std::vector<std::vector<std::span<std::uint8_t>>>;

// A tensor that does not have the change's old bits in all its places, or its new bits with `taken_back`. New tensors
// have none, and fit. REQUIRES for all functions: `places` are by the layout after the change.
[[nodiscard]] std::optional<std::size_t> FindOtherBits(const StagedChange& change, const TensorPlaces& places,
                                                       ThreadPool& pool, bool taken_back = false);

void WriteChange(const StagedChange& change, const TensorPlaces& places, ThreadPool& pool);
// Does not write to new tensors.
void TakeBackChange(const StagedChange& change, const TensorPlaces& places, ThreadPool& pool);

}  // namespace weightwire
