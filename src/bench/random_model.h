// A model made up for measurements: BF16 tensors whose exponents are spread as a trained model's are, and a state after
// it in which weights have moved by one ulp, the more often the smaller they are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/huge_buffer.h"
#include "base/result.h"
#include "base/threads.h"
#include "tensor/layout.h"

namespace weightwire {

// The bytes of a state, tensors one after another. Movable; the bytes stay where they are.
struct ModelState {
  std::shared_ptr<const Layout> layout;
  HugeBuffer buffer;
  std::vector<std::span<std::uint8_t>> tensors;  // by the layout

  [[nodiscard]] std::vector<std::span<const std::uint8_t>> views() const { return {tensors.begin(), tensors.end()}; }
};

// Rows of a matrix: 16 MiB, as layers of a model of some billions of weights have.
inline constexpr std::uint64_t kRandomRows = 4096;

// Makes about `size_bytes` bytes, in matrices of `rows` rows. The same for the same seed.
Result<ModelState> MakeRandomModel(std::uint64_t size_bytes, std::uint64_t seed, ThreadPool& pool,
                                   std::uint64_t rows = kRandomRows);

Result<ModelState> CopyOf(const ModelState& state, ThreadPool& pool);

// The share of the weights that change from one version to the next.
inline constexpr double kChangedShare = 0.01;

// Moves about `share` of all weights by one ulp, up or down.
void StepModel(ModelState& state, double share, std::uint64_t seed, ThreadPool& pool);

}  // namespace weightwire
