// The disk and the store that the commands of a run use. A test passes ones that kill the process before a chosen
// effect.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/filesystem.h"
#include "base/result.h"
#include "cli/global_options.h"
#include "store/open.h"
#include "store/store.h"

namespace weightwire {

// Who retries requests that the store does not answer.
enum class StoreRetries : std::uint8_t {
  kStore,   // the store, for --retry-for
  kCaller,  // the store for a short time, and then the caller, who has other work in between
};

struct CommandTools {
  FileSystem* files = nullptr;
  // What the user gave, once the arguments are parsed.
  std::shared_ptr<GlobalOptions> options = std::make_shared<GlobalOptions>();
  // RUN as the user wrote it, without a version. Requests are retried, and limited, as the options say.
  std::function<Result<std::unique_ptr<Store>>(const std::string& location, StoreRetries retries)> open_store;
  // Whether anybody can read that object of it without credentials. May be empty.
  std::function<Result<bool>(const std::string& location, std::string_view key)> is_public;
};

// How a store is retried and limited.
void SetStoreOptions(const GlobalOptions& options, StoreRetries retries, OpenOptions& open);

// `files`, and the stores of store/open.h. `files` must outlive it.
CommandTools RealTools(FileSystem& files);

}  // namespace weightwire
