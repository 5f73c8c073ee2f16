#include "codec/kept_bits.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace weightwire {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{2} << 20;
constexpr std::uint32_t kStretchUnits = 1 << 16;

}  // namespace

Result<void*> KeptBits::Room(std::size_t bytes) {
  if (!pieces_.empty()) {
    if (void* const room = pieces_.back()->Take(bytes); room != nullptr) return room;
  }
  std::shared_ptr<MemoryPool> piece;
  if (!spare_.empty() && bytes <= kPieceBytes) {
    piece = std::move(spare_.back());
    spare_.pop_back();
  } else {
    piece = MemoryPool::Make(std::max(bytes, kPieceBytes));
  }
  if (piece == nullptr) return Error(ErrorCode::kIo, "there is not enough memory for the bits that a publish replaces");
  void* const room = piece->Take(bytes);
  pieces_.push_back(std::move(piece));
  return room;
}

Status KeptBits::Keep(std::size_t entry, std::uint64_t first_unit, std::span<const std::uint32_t> positions,
                      std::span<const std::uint8_t> old_units, std::vector<ReplacedUnits>& replaced) {
  while (!positions.empty()) {
    const std::uint32_t start = positions.front() / kStretchUnits * kStretchUnits;
    const auto end = positions.back() - start < kStretchUnits
                         ? positions.end()
                         : std::lower_bound(positions.begin(), positions.end(), start + kStretchUnits);
    const auto count = static_cast<std::size_t>(end - positions.begin());
    const std::size_t units_size = old_units.size() / positions.size() * count;
    WW_TRY(void* const room, Room(count * sizeof(std::uint16_t) + units_size));
    auto* const kept_positions = static_cast<std::uint16_t*>(room);
    auto* const kept_units = reinterpret_cast<std::uint8_t*>(kept_positions + count);
    for (std::size_t k = 0; k < count; ++k) kept_positions[k] = static_cast<std::uint16_t>(positions[k] - start);
    std::memcpy(kept_units, old_units.data(), units_size);
    replaced.push_back({entry, first_unit + start, {kept_positions, count}, {kept_units, units_size}});
    positions = positions.subspan(count);
    old_units = old_units.subspan(units_size);
  }
  return Ok();
}

void KeptBits::Clear() {
  for (std::shared_ptr<MemoryPool>& piece : pieces_) {
    if (piece->size() != kPieceBytes) continue;  // of an unusual state
    piece->Clear();
    spare_.push_back(std::move(piece));
  }
  pieces_.clear();
}

}  // namespace weightwire
