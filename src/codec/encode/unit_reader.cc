#include "codec/encode/unit_reader.h"

#include <algorithm>

namespace weightwire {

Status ReadUnits(const UnitReader& reader, std::uint64_t first, std::uint64_t count, int unit_bytes,
                 std::uint8_t* out) {
  constexpr std::uint64_t kMost = 1 << 20;  // at a time
  for (std::uint64_t done = 0; done < count; done += kMost) {
    const std::uint64_t begin = first + done;
    const auto size = static_cast<std::uint32_t>(std::min(kMost, count - done));
    WW_RETURN_IF_ERROR(reader.Read({&begin, 1}, size, out + done * static_cast<std::uint64_t>(unit_bytes)));
  }
  return Ok();
}

}  // namespace weightwire
