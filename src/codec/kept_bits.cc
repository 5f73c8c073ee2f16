#include "codec/kept_bits.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace weightwire {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{2} << 20;

}  // namespace

Result<ReplacedUnits> KeptBits::Keep(ReplacedUnits units) {
  WW_TRY(std::uint8_t* const room, Room(units.positions.size_bytes() + units.old_units.size_bytes()));
  std::uint8_t* const old_units = room + units.positions.size_bytes();
  std::memcpy(room, units.positions.data(), units.positions.size_bytes());
  std::memcpy(old_units, units.old_units.data(), units.old_units.size_bytes());
  units.positions = {reinterpret_cast<const std::uint32_t*>(room), units.positions.size()};
  units.old_units = {old_units, units.old_units.size()};
  return units;
}

Result<std::uint8_t*> KeptBits::Room(std::size_t size) {
  if (pieces_.empty() || pieces_.back().bytes().size() - used_ < size) {
    WW_TRY(HugeBuffer piece, HugeBuffer::AllocateUntouched(std::max(size, kPieceBytes)));
    pieces_.push_back(std::move(piece));
    used_ = 0;
  }
  std::uint8_t* const room = pieces_.back().bytes().data() + used_;
  constexpr std::size_t kAlignment = alignof(std::max_align_t);
  used_ = std::min(pieces_.back().bytes().size(), (used_ + size + kAlignment - 1) / kAlignment * kAlignment);
  return room;
}

}  // namespace weightwire
