// weightwire verify RUN: reads a whole run and recomputes everything it promises.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "cli/world.h"

namespace weightwire {

struct VerifyOptions {
  std::string run;
  std::uint64_t from = 0;
  std::size_t threads = 0;
  bool json = false;
};

Status RunVerify(const VerifyOptions& options, const World& world);

}  // namespace weightwire
