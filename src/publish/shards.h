// What one of several ranks holds of a state: a box of each tensor, or none, so that all ranks together hold every
// element once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "codec/digest/digest.h"
#include "codec/format/box.h"
#include "codec/kernels/kernels.h"
#include "tensor/layout.h"

namespace weightwire {

// A rank's part of one tensor.
struct Shard {
  std::size_t tensor = 0;  // in the layout of the whole state
  std::optional<Box> box;  // none: all of it

  bool operator==(const Shard&) const = default;
};

// Immutable. Invariant: shards ascend by tensor, at most one of each, and every box fits its tensor. The rank's own
// layout has a tensor for each of them, of the same name and with the box's extent for a shape.
class Shards {
 public:
  // kInvalidArgument, saying which, if a box does not fit its tensor or comes twice.
  static Result<std::shared_ptr<const Shards>> Make(std::shared_ptr<const Layout> whole, std::vector<Shard> shards);

  [[nodiscard]] const std::shared_ptr<const Layout>& whole() const { return whole_; }
  [[nodiscard]] const std::shared_ptr<const Layout>& own() const { return own_; }
  [[nodiscard]] const std::vector<Shard>& all() const { return shards_; }
  [[nodiscard]] std::size_t size() const { return shards_.size(); }
  // The way of a shard's units through its tensor.
  [[nodiscard]] const BoxMap& map(std::size_t shard) const { return maps_[shard]; }

  bool operator==(const Shards& other) const { return *whole_ == *other.whole_ && shards_ == other.shards_; }

 private:
  Shards() = default;

  std::shared_ptr<const Layout> whole_;
  std::shared_ptr<const Layout> own_;
  std::vector<Shard> shards_;
  std::vector<BoxMap> maps_;
};

// What each shard adds to the digest of its tensor. `bytes` by the rank's own layout.
std::vector<Digest> DigestShards(const Shards& shards, std::span<const std::span<const std::uint8_t>> bytes,
                                 const Kernels& kernels, ThreadPool& pool);

// Copies the bits of a shard out of its tensor.
void CopyShard(const BoxMap& map, std::span<const std::uint8_t> tensor, std::span<std::uint8_t> out);

// The shards alone, for another rank that knows the layout; and back. kCorrupt if it is not such a text.
[[nodiscard]] std::string ToText(const Shards& shards);
Result<std::shared_ptr<const Shards>> ParseShards(std::string_view text, std::shared_ptr<const Layout> whole);

// Whether the ranks' shards cover every element of the layout exactly once, in no more boxes than a delta may have;
// kInvalidArgument, naming a tensor, if not.
Status CheckCover(const Layout& whole, std::span<const std::shared_ptr<const Shards>> ranks);

}  // namespace weightwire
