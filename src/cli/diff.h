// weightwire diff OLD NEW: what changed and what it costs to send.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"

namespace weightwire {

struct DiffOptions {
  std::filesystem::path old_path;
  std::filesystem::path new_path;
  std::optional<std::filesystem::path> delta_path;  // where the delta is to be written, if it is
  bool replace_delta = false;                       // even if there is a file of that name
  std::string mode = "auto";
  std::size_t threads = 0;
  bool compare = true;       // with what other systems' formats take
  bool all_tensors = false;  // unchanged ones too
  bool json = false;
};

Status RunDiff(const DiffOptions& options);

}  // namespace weightwire
