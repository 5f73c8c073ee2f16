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
};

std::unique_ptr<Store> WithOutageNotice(std::unique_ptr<Store> backend, const GlobalOptions& options,
                                        const Clock* clock) {
  const auto retry_for = std::chrono::ceil<std::chrono::seconds>(options.RetryFor());
  return std::make_unique<OutageNoticeStore>(std::move(backend), clock, retry_for);
}

}  // namespace

void SetStoreOptions(const GlobalOptions& options, StoreRetries retries, WrapOptions& wrap) {
  wrap.limits.bytes_per_second = options.max_bytes_per_second;
  wrap.retry.deadline = options.RetryFor();
  wrap.retry.across_calls = retries == StoreRetries::kStore;
  if (options.verbose) wrap.trace = [](const TraceEvent& event) { messages::Detail(FormatTraceEvent(event)); };
  if (retries == StoreRetries::kCaller) wrap.retry.deadline = std::min(wrap.retry.deadline, RetryPolicy().deadline);
}

CommandTools RealTools(FileSystem& files) {
  const auto store_tools = std::make_shared<StoreTools>();
  CommandTools tools;
  tools.files = &files;
  tools.open_store = [store_tools, options = tools.options](const std::string& location,
                                                            StoreRetries retries) -> Result<std::unique_ptr<Store>> {
    OpenOptions open;
    open.clock = &store_tools->clock;
    WrapOptions wrap;
    wrap.clock = &store_tools->clock;
    wrap.sleeper = &store_tools->sleeper;
    wrap.random = &store_tools->random;
    SetStoreOptions(*options, retries, wrap);
    WW_TRY(auto backend, OpenBackend(location, open));
    return WrapStore(WithOutageNotice(std::move(backend), *options, open.clock), wrap);
  };
  tools.is_public = [store_tools](const std::string& location, std::string_view key) {
    OpenOptions open;
    open.clock = &store_tools->clock;
    return IsPublic(location, open, key);
  };
  return tools;
}

}  // namespace weightwire
