// The size thresholds of src/tensor. ARCHITECTURE.md, "Timeouts, retries and limits", lists them with those of the
// other folders; ./dev lint compares the two.
#pragma once

#include <cstdint>

namespace weightwire {

// Weight files of a directory that is written afresh, as transformers splits them.
inline constexpr std::uint64_t kMaxShardBytes = 5'000'000'000;

}  // namespace weightwire
