// weightwire bench codec OLD NEW: how fast the codec is on this machine, beside the memory's own speed and beside the
// way most other systems go.
#pragma once

#include <filesystem>

#include "base/result.h"

namespace weightwire {

inline constexpr std::size_t kLeastRepetitions = 7;

struct BenchCodecOptions {
  std::filesystem::path old_path;
  std::filesystem::path new_path;
  std::size_t threads = 0;
  std::size_t repeat = kLeastRepetitions;
  bool ordinary_pages = false;
  bool json = false;
};

// Results are checked as well: an apply that does not give NEW bit for bit is an error.
Status RunBenchCodec(const BenchCodecOptions& options);

}  // namespace weightwire
