// Puts a part of a delta under its key.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "log/record.h"
#include "store/store.h"

namespace weightwire {

// `again`: an earlier attempt may have put it, so it is looked for first.
Status PutPart(Store& store, const PartRef& part, std::span<const std::uint8_t> bytes, bool again);

}  // namespace weightwire
