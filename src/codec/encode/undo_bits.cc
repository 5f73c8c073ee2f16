#include "codec/encode/undo_bits.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace weightwire {
namespace {

constexpr std::size_t kFirstBlockBytes = std::size_t{64} << 10;
constexpr std::size_t kSmallBlocks = 4;
constexpr std::uint32_t kStretchUnits = 1 << 16;

}  // namespace

std::uint8_t* UndoBits::Block::Take(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  if (bytes > size() - taken) return nullptr;
  std::uint8_t* const begin = large ? reinterpret_cast<std::uint8_t*>(large.begin()) : small.data();
  std::uint8_t* const room = begin + taken;
  taken = std::min(size(), taken + (bytes + kAlignment - 1) / kAlignment * kAlignment);
  return room;
}

Result<std::uint8_t*> UndoBits::Room(std::size_t bytes) {
  if (!blocks_.empty()) {
    if (std::uint8_t* const room = blocks_.back().Take(bytes); room != nullptr) return room;
  }
  Block block;
  while (!spare_.empty() && block.size() < bytes) {
    block = std::move(spare_.back());
    spare_.pop_back();
  }
  const std::size_t small_bytes = kFirstBlockBytes << std::min(blocks_.size(), kSmallBlocks);
  if (block.size() >= bytes) {
    // One that was used before.
  } else if (blocks_.size() < kSmallBlocks && bytes <= small_bytes) {
    block.small.resize(small_bytes);
  } else {
    block = {};
    block.large = LargeBlock::Allocate(bytes);
    if (!block.large) {
      return Error(ErrorCode::kIo, "there is not enough memory for the bits that a publish replaces");
    }
  }
  std::uint8_t* const room = block.Take(bytes);
  blocks_.push_back(std::move(block));
  return room;
}

Status UndoBits::Keep(std::size_t entry, std::uint64_t first_unit, std::span<const std::uint32_t> positions,
                      std::span<const std::uint8_t> old_units, std::vector<ReplacedUnits>& replaced) {
  while (!positions.empty()) {
    const std::uint32_t start = positions.front() / kStretchUnits * kStretchUnits;
    const auto end = positions.back() - start < kStretchUnits
                         ? positions.end()
                         : std::lower_bound(positions.begin(), positions.end(), start + kStretchUnits);
    const auto count = static_cast<std::size_t>(end - positions.begin());
    const std::size_t units_size = old_units.size() / positions.size() * count;
    WW_TRY(std::uint8_t* const room, Room(count * sizeof(std::uint16_t) + units_size));
    auto* const kept_positions = reinterpret_cast<std::uint16_t*>(room);
    auto* const kept_units = reinterpret_cast<std::uint8_t*>(kept_positions + count);
    for (std::size_t k = 0; k < count; ++k) kept_positions[k] = static_cast<std::uint16_t>(positions[k] - start);
    std::memcpy(kept_units, old_units.data(), units_size);
    replaced.push_back({entry, first_unit + start, {kept_positions, count}, {kept_units, units_size}});
    positions = positions.subspan(count);
    old_units = old_units.subspan(units_size);
  }
  return Ok();
}

void UndoBits::Clear() {
  for (Block& block : blocks_) block.taken = 0;
  std::ranges::reverse(blocks_);
  spare_ = std::exchange(blocks_, {});
}

std::size_t UndoBits::memory_bytes() const {
  std::size_t bytes = 0;
  for (const std::vector<Block>* blocks : {&blocks_, &spare_}) {
    for (const Block& block : *blocks) bytes += block.size();
  }
  return bytes;
}

}  // namespace weightwire
