// weightwire publish RUN CHECKPOINT: one version of a run from a checkpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/world.h"

namespace weightwire {

struct PublishOptions {
  std::string run;
  std::filesystem::path checkpoint;
  // None: the step after the newest version's, or that one if the state is the same.
  std::optional<std::uint64_t> step;
  std::optional<std::filesystem::path> state_directory;
  std::uint64_t anchor_every = 100;
  std::uint64_t anchor_percent = 100;
  bool single_writer = false;       // if the run has to be made
  bool carry_code = false;          // into anchors, what could run as code too
  bool drop_lost_versions = false;  // what is spooled and another publisher has taken the place of
  // How long to go on when the store cannot be reached.
  std::chrono::seconds patience{600};
  std::size_t threads = 0;
  bool json = false;
};

Status RunPublish(const PublishOptions& options, const World& world);

}  // namespace weightwire
