// A state as its owner has it in memory: what a publisher is given.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tensor/layout.h"

namespace weightwire {

// The tensors' bytes by the layout. They stay their owner's, and as they are until the call they are given to returns.
struct StateBits {
  std::shared_ptr<const Layout> layout;
  std::vector<std::span<const std::uint8_t>> tensors;
};

}  // namespace weightwire
