#include "codec/kept_bits.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace weightwire {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{2} << 20;

}  // namespace

Result<ReplacedUnits> KeptBits::Keep(ReplacedUnits units) {
  const std::size_t size = units.positions.size_bytes() + units.old_units.size_bytes();
  void* room = pieces_.empty() ? nullptr : pieces_.back()->Take(size);
  if (room == nullptr) {
    std::shared_ptr<MemoryPool> piece = MemoryPool::Make(std::max(size, kPieceBytes));
    if (piece == nullptr)
      return Error(ErrorCode::kIo, "there is not enough memory for the bits that a publish replaces");
    room = piece->Take(size);
    pieces_.push_back(std::move(piece));
  }
  auto* const positions = static_cast<std::uint32_t*>(room);
  auto* const old_units = reinterpret_cast<std::uint8_t*>(positions + units.positions.size());
  std::memcpy(positions, units.positions.data(), units.positions.size_bytes());
  std::memcpy(old_units, units.old_units.data(), units.old_units.size_bytes());
  units.positions = {positions, units.positions.size()};
  units.old_units = {old_units, units.old_units.size()};
  return units;
}

}  // namespace weightwire
