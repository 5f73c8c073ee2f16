// What is known of a state: its layout and the digest of every tensor, and the state digest that names it.
#pragma once

#include <span>
#include <vector>

#include "base/sha256.h"
#include "base/threads.h"
#include "codec/digest/digest.h"
#include "tensor/layout.h"

namespace weightwire {

// SHA-256 over the hash of the layout without its aliases and the tensors' digests in the layout's order
// (spec/FORMAT.md, "State digest"). Aliases do not count: the weights are the same whoever knows of the tie.
Sha256Digest StateDigest(const Layout& layout, std::span<const Digest> digests);

// Full digests of tensors, by threads over ranges. `tensors` are whole tensors' bytes.
std::vector<Digest> DigestTensors(std::span<const std::span<const std::uint8_t>> tensors, const Kernels& kernels,
                                  ThreadPool& pool);

}  // namespace weightwire
