// What the commands of a run touch beside their arguments: the disk and the store. A test puts in a world that
// dies at a chosen effect.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/filesystem.h"
#include "base/result.h"
#include "store/store.h"

namespace weightwire {

struct World {
  FileSystem* files = nullptr;
  // RUN as the user wrote it, without a version.
  std::function<Result<std::unique_ptr<Store>>(const std::string& location)> open_store;
  // Whether anybody can read that object of it without credentials. May be empty.
  std::function<Result<bool>(const std::string& location, std::string_view key)> is_public;
};

// This machine's disk, and the stores there are (store/open.h). `files` must outlive it.
World RealWorld(FileSystem& files);

}  // namespace weightwire
