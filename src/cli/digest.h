// weightwire digest CHECKPOINT: the state digest, and what it is made of.
#pragma once

#include <filesystem>

#include "base/result.h"

namespace weightwire {

struct DigestOptions {
  std::filesystem::path checkpoint;
  bool tensors = false;  // each tensor's digest too
  std::size_t threads = 0;
  bool json = false;
};

Status RunDigest(const DigestOptions& options);

}  // namespace weightwire
