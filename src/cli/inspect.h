// weightwire inspect DELTA: what is in a delta file.
#pragma once

#include <filesystem>
#include <optional>

#include "base/result.h"

namespace weightwire {

struct InspectOptions {
  std::filesystem::path delta;
  // Where names come from, if anywhere: a checkpoint the delta applies to or leads to, or a layout's canonical JSON.
  std::optional<std::filesystem::path> base;
  std::optional<std::filesystem::path> layout;
  bool json = false;
};

Status RunInspect(const InspectOptions& options);

}  // namespace weightwire
