// A state as its owner has it in memory: what a publisher is given.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "codec/encode/unit_reader.h"
#include "publish/shards.h"
#include "tensor/layout.h"

namespace weightwire {

// The tensors' bytes by the layout. They stay their owner's, and as they are until the call they are given to returns,
// unless `unchanged` is set.
struct StateBits {
  std::shared_ptr<const Layout> layout;
  std::vector<std::span<const std::uint8_t>> tensors;
  // Empty, or by the layout: a tensor that has one is made by it, and its bytes are empty.
  std::vector<const UnitReader*> readers = {};

  [[nodiscard]] const UnitReader* reader(std::size_t tensor) const {
    return readers.empty() ? nullptr : readers[tensor];
  }
  // Set if this is what one of several ranks holds: the layout is then shards->own().
  std::shared_ptr<const Shards> shards = nullptr;
  // Set if what readers make may change while it is read, by mistake: it is coded so that it is one state all the same
  // (EncodeRequest::may_move), and this is asked when all was read. An error says that somebody has changed it.
  std::function<Status()> unchanged = nullptr;
};

}  // namespace weightwire
