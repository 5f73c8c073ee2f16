// What the commands of a run touch beside their arguments: the disk and the store. A test puts in a world that
// dies at a chosen effect.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/filesystem.h"
#include "base/result.h"
#include "store/store.h"

namespace weightwire {

struct World {
  FileSystem* files = nullptr;
  // RUN as the user wrote it, without a version.
  std::function<Result<std::unique_ptr<Store>>(const std::string& location)> open_store;
};

}  // namespace weightwire
