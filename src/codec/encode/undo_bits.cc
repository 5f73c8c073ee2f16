#include "codec/encode/undo_bits.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace weightwire {
namespace {

constexpr std::size_t kFirstPieceBytes = std::size_t{64} << 10;
constexpr std::size_t kSmallPieces = 4;
constexpr std::uint32_t kStretchUnits = 1 << 16;

}  // namespace

std::uint8_t* UndoBits::Piece::Take(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  if (bytes > size() - taken) return nullptr;
  std::uint8_t* const begin = large ? reinterpret_cast<std::uint8_t*>(large.begin()) : small.data();
  std::uint8_t* const room = begin + taken;
  taken = std::min(size(), taken + (bytes + kAlignment - 1) / kAlignment * kAlignment);
  return room;
}

Result<std::uint8_t*> UndoBits::Room(std::size_t bytes) {
  if (!pieces_.empty()) {
    if (std::uint8_t* const room = pieces_.back().Take(bytes); room != nullptr) return room;
  }
  Piece piece;
  while (!spare_.empty() && piece.size() < bytes) {
    piece = std::move(spare_.back());
    spare_.pop_back();
  }
  const std::size_t small_bytes = kFirstPieceBytes << std::min(pieces_.size(), kSmallPieces);
  if (piece.size() >= bytes) {
    // One that was used before.
  } else if (pieces_.size() < kSmallPieces && bytes <= small_bytes) {
    piece.small.resize(small_bytes);
  } else {
    piece = {};
    piece.large = LargeBlock::Allocate(bytes);
    if (!piece.large) {
      return Error(ErrorCode::kIo, "there is not enough memory for the bits that a publish replaces");
    }
  }
  std::uint8_t* const room = piece.Take(bytes);
  pieces_.push_back(std::move(piece));
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
  for (Piece& piece : pieces_) piece.taken = 0;
  std::ranges::reverse(pieces_);
  spare_ = std::exchange(pieces_, {});
}

std::size_t UndoBits::memory_bytes() const {
  std::size_t bytes = 0;
  for (const std::vector<Piece>* pieces : {&pieces_, &spare_}) {
    for (const Piece& piece : *pieces) bytes += piece.size();
  }
  return bytes;
}

}  // namespace weightwire
