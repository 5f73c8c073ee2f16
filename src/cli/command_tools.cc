#include "cli/command_tools.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "cli/interrupt.h"

namespace weightwire {
namespace {

// What a store needs for as long as it is open.
struct StoreTools {
  SystemClock clock;
  InterruptSleeper sleeper;
  SystemRandom random;
};

}  // namespace

void SetStoreOptions(const GlobalOptions& options, StoreRetries retries, WrapOptions& wrap) {
  wrap.limits.bytes_per_second = options.max_bytes_per_second;
  wrap.retry.deadline = options.RetryFor();
  wrap.retry.across_calls = retries == StoreRetries::kStore;
  if (retries == StoreRetries::kCaller) wrap.retry.deadline = std::min(wrap.retry.deadline, RetryPolicy().deadline);
}

CommandTools RealTools(FileSystem& files) {
  const auto store_tools = std::make_shared<StoreTools>();
  CommandTools tools;
  tools.files = &files;
  tools.open_store = [store_tools, options = tools.options](const std::string& location, StoreRetries retries) {
    OpenOptions open;
    open.clock = &store_tools->clock;
    WrapOptions wrap;
    wrap.clock = &store_tools->clock;
    wrap.sleeper = &store_tools->sleeper;
    wrap.random = &store_tools->random;
    SetStoreOptions(*options, retries, wrap);
    return OpenStore(location, open, wrap);
  };
  tools.is_public = [store_tools](const std::string& location, std::string_view key) {
    OpenOptions open;
    open.clock = &store_tools->clock;
    return IsPublic(location, open, key);
  };
  return tools;
}

}  // namespace weightwire
