#include "codec/format/gap_tile.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bytes.h"
#include "codec/format/tile_changes.h"
#include "codec/format/units.h"

namespace weightwire {

namespace {

// Writes all gaps; `to` has room for GapsRoom of them. Returns the end.
template <typename Gap>
std::uint8_t* WriteGaps(std::span<const std::uint32_t> positions, std::uint8_t* to) {
  const auto put = [](std::uint8_t* at, std::uint32_t gap) {
    const auto narrow = static_cast<Gap>(gap);
    std::memcpy(at, &narrow, sizeof(Gap));
    return at + sizeof(Gap);
  };
  std::uint32_t next = 0;
  for (const std::uint32_t position : positions) {
    std::uint32_t gap = position - next;
    while (gap >= kLongestGap<Gap>) [[unlikely]] {
        to = put(to, kLongestGap<Gap>);
        gap -= kLongestGap<Gap>;
      }
    to = put(to, gap);
    next = position + 1;
  }
  return to;
}

// At most so many gaps are needed, whatever the positions.
template <typename Gap>
std::size_t GapsRoom(std::span<const std::uint32_t> positions) {
  return positions.size() + positions.back() / kLongestGap<Gap>;
}

// Gaps at the end of the streams, in as few bytes as they take; returns whether that is wide.
bool AppendGaps(std::span<const std::uint32_t> positions, std::vector<std::uint8_t>& streams) {
  const std::size_t at = streams.size();
  const auto append = [&]<typename Gap>() {
    streams.resize(at + sizeof(Gap) * GapsRoom<Gap>(positions));
    streams.resize(static_cast<std::size_t>(WriteGaps<Gap>(positions, streams.data() + at) - streams.data()));
    return streams.size() - at;
  };
  const std::size_t narrow_bytes = append.template operator()<std::uint8_t>();
  if (narrow_bytes <= 2 * positions.size()) return false;
  if (append.template operator()<std::uint16_t>() < narrow_bytes) return true;
  append.template operator()<std::uint8_t>();
  return false;
}

template <typename Unit>
Unit Magnitude(Unit old_unit, Unit new_unit) {
  return static_cast<Unit>(new_unit < old_unit ? old_unit - new_unit : new_unit - old_unit);
}

// The codes of all steps, two a byte, to `steps` in the streams; magnitudes at their end.
template <typename Unit>
void AppendSteps(const TileChanges& changes, std::size_t steps, std::vector<std::uint8_t>& streams) {
  constexpr std::size_t kBatch = 256;  // even
  std::array<std::uint8_t, kBatch> codes;
  ByteWriter writer(streams);
  const std::size_t count = changes.positions.size();
  for (std::size_t first = 0; first < count; first += kBatch) {
    const std::size_t size = std::min(kBatch, count - first);
    // Without branches, and apart from what follows, so that the compiler makes vectors of it.
    std::uint8_t most = 0;
    for (std::size_t k = 0; k < size; ++k) {
      const Unit old_unit = LoadUnit<Unit>(changes.old_units, first + k);
      const Unit new_unit = LoadUnit<Unit>(changes.new_units, first + k);
      const Unit magnitude = std::min<Unit>(Magnitude(old_unit, new_unit), Unit{kLeastLongMagnitude});
      codes[k] = static_cast<std::uint8_t>(2 * (magnitude - 1) + (new_unit < old_unit ? 1 : 0));
      most = std::max(most, codes[k]);
    }
    if (size % 2 == 1) codes[size] = 0;
    std::uint8_t* to = streams.data() + steps + first / 2;
    for (std::size_t k = 0; k < size; k += 2) *to++ = static_cast<std::uint8_t>(codes[k] | (codes[k + 1] << 4));
    if (most < kFirstLongStep) continue;
    for (std::size_t k = 0; k < size; ++k) {
      if (codes[k] < kFirstLongStep) continue;
      writer.Varint(
          Magnitude(LoadUnit<Unit>(changes.old_units, first + k), LoadUnit<Unit>(changes.new_units, first + k)) -
          kLeastLongMagnitude);
    }
  }
}

}  // namespace

std::optional<GapStream> OpenGapStream(std::span<const std::uint8_t> stream, std::uint32_t unit_count) {
  GapStream opened;
  if (stream.empty()) return opened;
  ByteReader reader(stream);
  const auto head = reader.Varint();
  if (!head.ok()) return std::nullopt;
  const std::uint64_t changed = head.value() >> 1;
  if (changed == 0 || changed > unit_count) return std::nullopt;
  opened.changed = static_cast<std::uint32_t>(changed);
  opened.wide = (head.value() & 1) != 0;
  const auto steps = reader.Bytes((changed + 1) / 2);
  if (!steps.ok()) return std::nullopt;
  if (changed % 2 == 1 && (steps.value().back() >> 4) != 0) return std::nullopt;
  opened.steps = steps.value().data();
  opened.rest = stream.subspan(reader.position());
  if (opened.rest.size() < changed * (opened.wide ? 2 : 1)) return std::nullopt;
  return opened;
}

void AppendGapStream(const TileChanges& changes, int unit_bytes, std::vector<std::uint8_t>& streams) {
  const std::size_t count = changes.positions.size();
  if (count == 0) return;
  const std::size_t head = streams.size();
  ByteWriter(streams).Varint(2 * std::uint64_t{count});
  const std::size_t steps = streams.size();
  streams.resize(steps + (count + 1) / 2);
  if (AppendGaps(changes.positions, streams)) streams[head] |= 1;
  WithUnit(unit_bytes, [&]<typename Unit>() { AppendSteps<Unit>(changes, steps, streams); });
}

}  // namespace weightwire
