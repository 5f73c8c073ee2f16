#include "cli/command_tools.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "cli/interrupt.h"
#include "cli/messages.h"
#include "cli/outage_notice.h"

namespace weightwire {
namespace {

// What a store needs for as long as it is open.
struct StoreTools {
  SystemClock clock;
  InterruptSleeper sleeper;
  SystemRandom random;

  [[nodiscard]] OpenOptions Options() {
    OpenOptions options;
    options.clock = &clock;
    options.sleeper = &sleeper;
    options.random = &random;
    return options;
  }
};

std::unique_ptr<Store> WithOutageNotice(std::unique_ptr<Store> backend, const GlobalOptions& options,
                                        const Clock* clock) {
  const auto retry_for = std::chrono::ceil<std::chrono::seconds>(options.RetryFor());
  return std::make_unique<OutageNoticeStore>(std::move(backend), clock, retry_for);
}

}  // namespace

void SetStoreOptions(const GlobalOptions& options, StoreRetries retries, OpenOptions& open) {
  open.limits.bytes_per_second = options.max_bytes_per_second;
  open.retry.deadline = options.RetryFor();
  open.retry.across_calls = retries == StoreRetries::kStore;
  if (options.verbose) open.trace = [](const TraceEvent& event) { messages::Detail(FormatTraceEvent(event)); };
  if (retries == StoreRetries::kCaller) open.retry.deadline = std::min(open.retry.deadline, RetryPolicy().deadline);
}

CommandTools RealTools(FileSystem& files) {
  const auto store_tools = std::make_shared<StoreTools>();
  CommandTools tools;
  tools.files = &files;
  tools.open_store = [store_tools, options = tools.options](const std::string& location,
                                                            StoreRetries retries) -> Result<std::unique_ptr<Store>> {
    OpenOptions open = store_tools->Options();
    SetStoreOptions(*options, retries, open);
    WW_TRY(auto backend, OpenBackend(location, open));
    return WrapStore(WithOutageNotice(std::move(backend), *options, open.clock), open);
  };
  tools.is_public = [store_tools](const std::string& location, std::string_view key) {
    return IsPublic(location, store_tools->Options(), key);
  };
  return tools;
}

}  // namespace weightwire
