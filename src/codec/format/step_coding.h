// Codes the bits of a step that the tables say nothing about: as raw bits, in events of at most 32, the lowest bits
// first (spec/FORMAT.md, "Values").
#pragma once

#include <algorithm>
#include <cstdint>

#include "codec/format/order.h"
#include "codec/format/rans.h"

namespace weightwire {

// Appends the events of `bits` raw bits, in the order the decoder meets them, and returns the new end.
inline RansEvent* AppendRawBits(std::uint64_t raw, int bits, RansEvent* events) {
  while (bits > 0) {
    const int count = std::min(bits, 32);
    const auto start = static_cast<std::uint32_t>((raw & ((std::uint64_t{1} << count) - 1)) << (32 - count));
    *events++ = {start, static_cast<std::uint32_t>(kRansTotal >> count)};
    bits -= count;
    raw >>= count;
  }
  return events;
}

inline std::uint64_t PopRawBits(RansDecoder& coder, int bits) {
  if (bits == 0) return 0;
  std::uint64_t raw = coder.PopBits(std::min(bits, 32));
  if (bits > 32) raw |= std::uint64_t{coder.PopBits(bits - 32)} << 32;
  return raw;
}

// The interval of a change in [begin, end) of the waiting time, and of no change before `limit` (spec, "Positions"):
// the line is folded in the middle, and a change lies on the left if it goes up, on the right if it goes down.
inline constexpr std::uint32_t kFold = 1u << 31;

inline RansEvent ChangeEvent(std::uint32_t waiting_begin, std::uint32_t waiting_end, bool down) {
  return {down ? kFold + waiting_end : kFold - waiting_begin, waiting_begin - waiting_end};
}
// Where a position of the coder lies in the waiting, whichever side of the fold it is on.
inline std::uint32_t FoldedPosition(std::uint32_t position) {
  return position >= kFold ? position - kFold : kFold - 1 - position;
}
inline RansEvent SurvivalEvent(std::uint32_t waiting_limit) { return {kFold - waiting_limit, 2 * waiting_limit}; }

}  // namespace weightwire
