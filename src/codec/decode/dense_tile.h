// Decoding of dense tiles (spec/FORMAT.md, "Payload"). Sparse tiles and gap tiles are decoded by kernels
// (codec/kernels/kernels.h).
#pragma once

#include <cstdint>
#include <span>

#include "codec/format/tables.h"

namespace weightwire {

// Writes all `count` new units of a dense tile; false when the stream is damaged.
bool DecodeDenseTile(std::span<const std::uint8_t> stream, const std::uint8_t* base_units, std::uint32_t count,
                     int unit_bytes, const ExpandedTables& tables, std::uint8_t* new_units);

}  // namespace weightwire
