// What one of several ranks holds of a state, as a test deals it out: some tensors by rows, some by columns, in chunks
// as torch cuts them, others whole to one rank. So some ranks have less than others, and some have nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "publish/shards.h"
#include "publish/state_bits.h"
#include "tensor/layout.h"

namespace weightwire::testing {

struct Holding {
  std::shared_ptr<const Shards> shards;
  std::vector<std::vector<std::uint8_t>> bytes;  // by shard

  // They point into the holding.
  [[nodiscard]] StateBits Bits() const { return {shards->own(), {bytes.begin(), bytes.end()}, {}, shards}; }
};

// `tensors` by the layout, all of the state.
inline Holding Hold(const std::shared_ptr<const Layout>& layout, const std::vector<std::vector<std::uint8_t>>& tensors,
                    std::uint64_t rank, std::uint64_t ranks) {
  std::vector<Shard> list;
  for (std::size_t i = 0; i < layout->size(); ++i) {
    const TensorSpec& spec = layout->tensors()[i];
    if (layout->byte_size(i) == 0) continue;
    if (spec.shape.empty() || spec.dtype == DType::kU8) {
      if (i % ranks == rank) list.push_back({i, {}});
      continue;
    }
    const std::size_t d = i % 2 == 0 ? spec.shape.size() - 1 : 0;
    const std::uint64_t chunk = (spec.shape[d] + ranks - 1) / ranks;
    const std::uint64_t begin = std::min(spec.shape[d], chunk * rank);
    const std::uint64_t end = std::min(spec.shape[d], begin + chunk);
    if (begin == end) continue;
    Box box{std::vector<std::uint64_t>(spec.shape.size(), 0), spec.shape};
    box.start[d] = begin;
    box.extent[d] = end - begin;
    list.push_back({i, box});
  }
  Holding holding;
  holding.shards = Shards::Make(layout, std::move(list)).value();
  for (std::size_t i = 0; i < holding.shards->size(); ++i) {
    auto& bytes = holding.bytes.emplace_back(holding.shards->own()->byte_size(i));
    CopyShard(holding.shards->map(i), tensors[holding.shards->all()[i].tensor], bytes);
  }
  return holding;
}

}  // namespace weightwire::testing
