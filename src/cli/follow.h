// weightwire follow RUN DIR: keeps a directory at the newest version of a run.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/world.h"
#include "log/keys.h"

namespace weightwire {

struct FollowOptions {
  std::string run;
  std::filesystem::path directory;
  bool once = false;
  std::optional<Version> until;
  std::optional<std::chrono::milliseconds> timeout;  // for `until`
  std::optional<Version> stand_still;
  std::optional<std::string> exec;  // after each update
  std::optional<std::string> vllm;  // the URL of a server that is brought along
  bool every_version = false;
  bool swap = false;        // whole copies behind a link, for readers that take no lock
  bool adopt = false;       // take over a directory that has files
  bool carry_code = false;  // and files that could run as code
  bool check = true;        // digest what the mirror holds, in full, before going on from it
  bool keep_lease = true;
  std::optional<std::string> name;
  std::chrono::milliseconds poll{2'000};
  std::size_t threads = 0;
  bool json = false;
};

Status RunFollow(const FollowOptions& options, const World& world);

}  // namespace weightwire
