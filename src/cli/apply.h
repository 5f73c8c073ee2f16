// weightwire apply BASE DELTA... -o OUT (or --in-place): the state after the deltas.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "base/result.h"

namespace weightwire {

struct ApplyOptions {
  std::filesystem::path base;
  std::vector<std::filesystem::path> deltas;  // in order
  std::optional<std::filesystem::path> output;
  bool in_place = false;
  std::size_t threads = 0;
  bool json = false;
};

Status RunApply(const ApplyOptions& options);

}  // namespace weightwire
