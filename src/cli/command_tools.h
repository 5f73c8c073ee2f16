// The disk and the store that the commands of a run use. A test passes ones that kill the process before a chosen
// effect.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/filesystem.h"
#include "base/result.h"
#include "store/store.h"

namespace weightwire {

struct CommandTools {
  FileSystem* files = nullptr;
  // RUN as the user wrote it, without a version.
  std::function<Result<std::unique_ptr<Store>>(const std::string& location)> open_store;
  // Whether anybody can read that object of it without credentials. May be empty.
  std::function<Result<bool>(const std::string& location, std::string_view key)> is_public;
};

// `files`, and the stores of store/open.h. `files` must outlive it.
CommandTools RealTools(FileSystem& files);

}  // namespace weightwire
