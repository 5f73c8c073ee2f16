// Whole numbers as people write them.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace weightwire {

// Decimal digits and nothing else, below 2^64.
Result<std::uint64_t> ParseNumber(const std::string& text);

}  // namespace weightwire
