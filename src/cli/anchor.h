// weightwire anchor RUN[@VERSION]: writes a full checkpoint of a version into the bucket.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/world.h"

namespace weightwire {

struct AnchorCommandOptions {
  std::string run;
  // A directory that holds the version: a mirror, or any checkpoint of it. None: it is fetched first.
  std::optional<std::filesystem::path> from;
  bool carry_code = false;  // what could run as code too
  std::size_t threads = 0;
  bool json = false;
};

Status RunAnchor(const AnchorCommandOptions& options, const World& world);

}  // namespace weightwire
